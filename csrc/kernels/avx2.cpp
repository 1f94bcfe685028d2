#define LAYERWISE_ISA avx2
#include "table.hpp"

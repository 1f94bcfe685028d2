#define LAYERWISE_ISA avx512
#include "table.hpp"

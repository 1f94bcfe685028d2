#define LAYERWISE_TABLE avx2_any
#include "table.hpp"

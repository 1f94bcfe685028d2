#define LAYERWISE_TABLE avx512_narrow
#define LAYERWISE_NARROW
#include "table.hpp"

#define LAYERWISE_TABLE avx512_low
#define LAYERWISE_LOW
#include "table.hpp"

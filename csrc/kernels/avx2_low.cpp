#define LAYERWISE_TABLE avx2_low
#define LAYERWISE_LOW
#include "table.hpp"

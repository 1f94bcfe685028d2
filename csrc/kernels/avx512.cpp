#define LAYERWISE_TABLE avx512_any
#include "table.hpp"

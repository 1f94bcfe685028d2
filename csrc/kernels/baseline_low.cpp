#define LAYERWISE_TABLE baseline_low
#define LAYERWISE_LOW
#include "table.hpp"

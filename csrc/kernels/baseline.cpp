#define LAYERWISE_TABLE baseline_any
#include "table.hpp"

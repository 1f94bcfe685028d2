#define LAYERWISE_ISA baseline
#include "table.hpp"

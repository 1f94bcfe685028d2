// All programs, and the list of rules that have any.
#include "layer.hpp"
#include "printed/rules.hpp"

namespace layerwise {

#define LAYERWISE_DECLARED(rule) extern const Rule rule##_rule;
LAYERWISE_RULES(LAYERWISE_DECLARED)

#define LAYERWISE_LISTED(rule) &rule##_rule,
const Rule* const rules[] = {LAYERWISE_RULES(LAYERWISE_LISTED)};
const int rule_count = int(sizeof(rules) / sizeof(*rules));

}  // namespace layerwise

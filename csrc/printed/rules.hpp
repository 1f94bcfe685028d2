// The rules that have programs, by `make generate`.
#define LAYERWISE_RULES(X) \
  X(adafactor) \
  X(adammini) \
  X(adamw) \
  X(fromage) \
  X(lamb) \
  X(lans) \
  X(lars) \
  X(lion) \
  X(novograd) \
  X(sgd) \
  X(stableadamw)

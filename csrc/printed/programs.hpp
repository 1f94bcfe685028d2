// All printed programs, by `make generate`. Each file with kernels includes them in a namespace of its own.
#include "adafactor.hpp"
#include "adammini.hpp"
#include "adamw.hpp"
#include "lamb.hpp"
#include "lans.hpp"
#include "lars.hpp"
#include "novograd.hpp"
#include "sgd.hpp"
#include "stableadamw.hpp"

#define LAYERWISE_PROGRAMS(X) \
  X(Adafactor) \
  X(AdafactorScaleParameterFalse) \
  X(AdafactorWithExpAvg) \
  X(AdafactorWithExpAvgScaleParameterFalse) \
  X(AdafactorWithExpAvgCautionTrue) \
  X(AdafactorWithExpAvgCautionTrueScaleParameterFalse) \
  X(AdamMini) \
  X(AdamW) \
  X(AdamWNesterovTrue) \
  X(Lamb) \
  X(LambAdaptFalse) \
  X(LambCautionTrue) \
  X(LambCautionTrueAdaptFalse) \
  X(LambKeepNormTrue) \
  X(LambWithNormKeepNormFirst) \
  X(Lans) \
  X(LansAdaptFalse) \
  X(Lars) \
  X(LarsNesterovTrue) \
  X(LarsAdaptFalse) \
  X(LarsAdaptFalseNesterovTrue) \
  X(LarsCautionTrue) \
  X(LarsCautionTrueAdaptFalse) \
  X(LarsWithoutMomentumBuffer) \
  X(LarsWithoutMomentumBufferAdaptFalse) \
  X(LarsKeepNormTrue) \
  X(LarsKeepNormTrueAdaptFalse) \
  X(LarsWithNormKeepNormFirst) \
  X(LarsWithNormKeepNormFirstAdaptFalse) \
  X(NovoGrad) \
  X(SGD) \
  X(SGDWithMomentumBuffer) \
  X(SGDWithMomentumBufferNesterovTrue) \
  X(StableAdamW) \
  X(StableAdamWClipThresholdNone)

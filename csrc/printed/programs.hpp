// All printed programs, by `make generate`. Each file with kernels includes them in a namespace of its own.
#include "adafactor.hpp"
#include "adammini.hpp"
#include "lamb.hpp"
#include "lans.hpp"
#include "lars.hpp"
#include "novograd.hpp"

#define LAYERWISE_PROGRAMS(X) \
  X(Adafactor) \
  X(AdafactorScaleParameterFalse) \
  X(AdafactorWithExpAvg) \
  X(AdafactorWithExpAvgScaleParameterFalse) \
  X(AdafactorWithExpAvgCautionTrue) \
  X(AdafactorWithExpAvgCautionTrueScaleParameterFalse) \
  X(AdamMini) \
  X(Lamb) \
  X(LambAdaptFalse) \
  X(LambCautionTrue) \
  X(LambCautionTrueAdaptFalse) \
  X(Lans) \
  X(LansAdaptFalse) \
  X(Lars) \
  X(LarsNesterovTrue) \
  X(LarsAdaptFalse) \
  X(LarsAdaptFalseNesterovTrue) \
  X(LarsCautionTrue) \
  X(LarsCautionTrueNesterovTrue) \
  X(LarsCautionTrueAdaptFalse) \
  X(LarsCautionTrueAdaptFalseNesterovTrue) \
  X(LarsWithoutMomentumBuffer) \
  X(LarsWithoutMomentumBufferAdaptFalse) \
  X(LarsWithoutMomentumBufferCautionTrue) \
  X(LarsWithoutMomentumBufferCautionTrueAdaptFalse) \
  X(NovoGrad)

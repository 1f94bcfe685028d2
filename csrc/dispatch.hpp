// Which kernels run on this machine.
#pragma once

#include <string>
#include <vector>

#include "layer.hpp"

namespace layerwise {

// Those the machine can run, fastest first.
std::vector<const Kernels*> available_kernels();

// The ones in use. `use_kernels` is false where there are none of that name.
const Kernels& kernels();
bool use_kernels(const std::string& name);

}  // namespace layerwise

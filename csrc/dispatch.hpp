// Which kernels run on this machine.
#pragma once

#include <string>
#include <vector>

#include "layer.hpp"

namespace layerwise {

// The kernels that this machine can run, the fastest first.
std::vector<const Kernels*> available_kernels();

// The kernels in use. `use_kernels` returns false if there are none of that name.
const Kernels& kernels();
bool use_kernels(const std::string& name);

}  // namespace layerwise

// Packs the values of several ranks into one compressed text. The values are so similar that the
// text has a tenth of their bytes.
#pragma once

#include <string>
#include <vector>

namespace torch_ucc {

std::string pack(const std::vector<std::string>& values);

// Returns the values that pack() got. Throws StatusError (transport) if pack() cannot have made the
// text. The values take at most about a thousand times the bytes of the text.
std::vector<std::string> unpack(const std::string& text);

}  // namespace torch_ucc

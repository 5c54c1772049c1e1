// Names with values, in an order, and the one text form in which ranks publish them in the store.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace torch_ucc {

using NamedValues = std::vector<std::pair<std::string, std::string>>;

// Converts names and values to one text and back. decode_values() throws StatusError (transport) if
// the text does not have the form that encode_values() makes.
std::string encode_values(const NamedValues& values);
NamedValues decode_values(const std::string& text);

// Throws the StatusError (transport) for a text of another rank that cannot be read.
[[noreturn]] void refuse_published();

// Returns the value at `index`. Throws StatusError (transport) if it is not there, or has another
// name.
const std::string& value_at(const NamedValues& values, std::size_t index, const std::string& name);

}  // namespace torch_ucc

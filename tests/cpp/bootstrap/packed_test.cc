#include "bootstrap/packed.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace torch_ucc {
namespace {

using Values = std::vector<std::string>;

TEST(Packed, KeepsAnyValues) {
  for (const Values& values : {Values{}, Values{""}, Values{"", "a", ""}, Values{"1\n2\n", std::string("\0\xff", 2)},
                               Values(3, std::string(100000, 'x'))}) {
    EXPECT_EQ(unpack(pack(values)), values);
  }
}

TEST(Packed, TakesAFewBytesForWhatIsAlike) {
  Values values;
  for (int i = 0; i < 64; ++i) {
    values.push_back(std::string(2000, 'x') + std::to_string(i));
  }
  EXPECT_LT(pack(values).size(), 64U * 40U);
}

TEST(Packed, NeverReadsOtherValuesFromATextThatIsCutOrChanged) {
  const Values values{"one", "two", std::string(300, 'x')};
  const std::string text = pack(values);
  int refused = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    EXPECT_THROW(unpack(text.substr(0, i)), StatusError) << i;
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    try {
      EXPECT_EQ(unpack(changed), values) << i;  // zlib leaves bits of a byte that mean nothing
    } catch (const StatusError&) {
      ++refused;
    }
  }
  EXPECT_GE(refused, static_cast<int>(text.size()) - 1);
}

TEST(Packed, RefusesASizeThatNoSuchTextHasBeforeItTakesMemory) {
  std::string text = pack({"one"});
  text.replace(0, text.find('\n'), "1000000000000");
  EXPECT_THROW(unpack(text), StatusError);
}

}  // namespace
}  // namespace torch_ucc

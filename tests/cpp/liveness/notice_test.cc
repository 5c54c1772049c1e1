#include "liveness/notice.h"

#include <gtest/gtest.h>

#include <string>

#include "base/named_values.h"
#include "base/status.h"

namespace torch_ucc {
namespace {

TEST(Notice, ComesBack) {
  for (const Ending how : {Ending::left, Ending::exited, Ending::died, Ending::reset, Ending::unreachable}) {
    const std::string bytes = Notice{0x0102030405060708, how}.encode();
    ASSERT_EQ(bytes.size(), Notice::kBytes);
    EXPECT_EQ(bytes[0], 8);  // little endian
    const std::optional<Notice> back = Notice::decode(bytes);
    ASSERT_TRUE(back);
    EXPECT_EQ(back->peer, 0x0102030405060708U);
    EXPECT_EQ(back->how, how);
  }
}

TEST(Notice, KnowsWhatItIsNot) {
  const std::string bytes = Notice{1, Ending::died}.encode();
  EXPECT_FALSE(Notice::decode(bytes.substr(1)));
  EXPECT_FALSE(Notice::decode(bytes + "x"));
  EXPECT_FALSE(Notice::decode(std::string(Notice::kBytes, '\0')));    // no such ending
  EXPECT_FALSE(Notice::decode(std::string(Notice::kBytes, '\xff')));  // nor that
}

TEST(Hello, ComesBack) {
  const Secret secret = Secret::random();
  const std::string bytes = Hello{secret.knock, 9999}.encode();
  ASSERT_EQ(bytes.size(), Hello::kBytes);
  const std::optional<Hello> back = Hello::decode(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->knock, secret.knock);
  EXPECT_EQ(back->from, 9999U);
}

TEST(Hello, KnowsWhatItIsNot) {
  std::string bytes = Hello{Secret::random().knock, 1}.encode();
  EXPECT_FALSE(Hello::decode(bytes.substr(1)));
  bytes[0] = 'G';  // as of "GET / HTTP/1.1"
  EXPECT_FALSE(Hello::decode(bytes));
}

TEST(Secret, IsAnotherEachTime) {
  const Secret first = Secret::random();
  const Secret second = Secret::random();
  EXPECT_EQ(first.knock.size(), Secret::kHalf);
  EXPECT_NE(first.knock, second.knock);
  EXPECT_NE(first.knock, first.answer);
}

TEST(Secret, IsComparedAsAWhole) {
  EXPECT_TRUE(equal_secrets("abc", "abc"));
  EXPECT_FALSE(equal_secrets("abc", "abd"));
  EXPECT_FALSE(equal_secrets("xbc", "abc"));
  EXPECT_FALSE(equal_secrets("abc", "ab"));
}

TEST(LineAddress, ComesBack) {
  LineAddress address;
  address.secret = Secret::random();
  address.port = 65535;
  address.hosts = "10.0.0.1 fd00::1";
  const LineAddress back = LineAddress::decode(address.encode());
  EXPECT_EQ(back.secret.knock, address.secret.knock);
  EXPECT_EQ(back.secret.answer, address.secret.answer);
  EXPECT_EQ(back.port, 65535);
  EXPECT_EQ(back.hosts, "10.0.0.1 fd00::1");
}

TEST(LineAddress, KnowsWhatItIsNot) {
  const std::string good = LineAddress{Secret::random(), 1, "10.0.0.1"}.encode();
  const NamedValues fields = decode_values(good);
  const auto with = [&](std::size_t index, const std::string& value) {
    NamedValues others = fields;
    others[index].second = value;
    return encode_values(others);
  };
  EXPECT_NO_THROW(LineAddress::decode(with(1, "65535")));
  for (const std::string& bad : {std::string(), std::string("x"), good.substr(2), encode_values({fields[0], fields[1]}),
                                 encode_values({fields[1], fields[0], fields[2]}), with(0, "00"), with(0, "not hex"),
                                 with(1, "65536"), with(1, "port"), with(1, "")}) {
    EXPECT_THROW(LineAddress::decode(bad), StatusError) << bad;
  }
}

}  // namespace
}  // namespace torch_ucc

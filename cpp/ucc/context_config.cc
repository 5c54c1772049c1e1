#include "ucc/context_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <sstream>
#include <string>

#include "base/status.h"
#include "ucc/library.h"
#include "ucc/status.h"

namespace torch_ucc {
namespace {

struct Option {
  std::string component;  // such as "tl/ucp"; empty for the context itself
  std::string name;
};

Option parse(const std::string& text) {
  const bool is_of_component = text.starts_with("TL_") || text.starts_with("CL_");
  const std::size_t end = is_of_component ? text.find('_', 3) : std::string::npos;
  if (end == std::string::npos) {
    return {"", text};
  }
  std::string component = text.substr(0, end);
  component[2] = '/';
  std::transform(component.begin(), component.end(), component.begin(),
                 [](unsigned char letter) { return std::tolower(letter); });
  return {component, text.substr(end + 1)};
}

}  // namespace

UccContextConfig read_ucc_context_config(const NamedValues& options) {
  UccContextConfig config;
  throw_if_error(from_ucc(ucc_context_config_read(ucc_library(), nullptr, config.out()), "ucc_context_config_read"));
  for (const auto& [text, value] : options) {
    const Option option = parse(text);
    const char* const component = option.component.empty() ? nullptr : option.component.c_str();
    throw_if_error(from_ucc(ucc_context_config_modify(config.get(), component, option.name.c_str(), value.c_str()),
                            "ucc_context_config_modify " + text));
  }
  return config;
}

std::string tls_without_reads(const std::string& tls) {
  constexpr std::array<const char*, 2> kReaders{"cma", "knem"};
  const bool excludes = tls.starts_with('^');
  std::string kept;
  std::istringstream names(excludes ? tls.substr(1) : tls.empty() ? "all" : tls);
  for (std::string name; std::getline(names, name, ',');) {
    if (!excludes && name == "all") {
      return tls_without_reads("^");
    }
    if (std::find(kReaders.begin(), kReaders.end(), name) == kReaders.end()) {
      kept += (kept.empty() ? "" : ",") + (!excludes && (name == "sm" || name == "shm") ? "mm" : name);
    }
  }
  if (!excludes && !kept.empty()) {
    return kept;
  }
  for (const char* reader : kReaders) {
    kept += (kept.empty() ? "" : ",") + std::string(reader);
  }
  return "^" + kept;
}

NamedValues without_reads(NamedValues ucx) {
  const auto told = std::find_if(ucx.rbegin(), ucx.rend(), [](const auto& each) { return each.first == "TLS"; });
  if (told != ucx.rend()) {
    told->second = tls_without_reads(told->second);
    return ucx;
  }
  const char* tls = std::getenv("UCC_UCX_TLS");  // NOLINT(concurrency-mt-unsafe): see base/environment.h
  if (tls == nullptr) {
    tls = std::getenv("UCX_TLS");  // NOLINT(concurrency-mt-unsafe): see base/environment.h
  }
  ucx.emplace_back("TLS", tls_without_reads(tls == nullptr ? "" : tls));
  return ucx;
}

}  // namespace torch_ucc

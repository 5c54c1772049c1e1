#include "ucc/library.h"

#include "ucc/error_log.h"
#include "ucc/status.h"

namespace torch_ucc {
namespace {

ucc_lib_h initialise() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned patch = 0;
  ucc_get_version(&major, &minor, &patch);
  if (major != UCC_API_MAJOR || minor < 3) {
    throw StatusError(Status(StatusCode::unsupported, "the UCC library that was loaded is version " + ucc_library_version() +
                                                          "; torch_ucc needs " + std::to_string(UCC_API_MAJOR) +
                                                          ".3 or a later " + std::to_string(UCC_API_MAJOR) +
                                                          ".x (see UCC_HOME)"));
  }
  ucc_lib_config_h config = nullptr;
  throw_if_error(from_ucc(ucc_lib_config_read(nullptr, nullptr, &config), "ucc_lib_config_read"));
  ucc_lib_params_t params{};  // all zero: UCC reads thread_mode whatever the mask says
  params.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCC_THREAD_MULTIPLE;
  ucc_lib_h library = nullptr;
  const ucc_status_t status = ucc_init(&params, config, &library);
  ucc_lib_config_release(config);
  throw_if_error(from_ucc(status, "ucc_init"));
  ErrorLog::listen();
  return library;
}

}  // namespace

ucc_lib_h ucc_library() {
  static const ucc_lib_h library = initialise();
  return library;
}

std::string ucc_library_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned patch = 0;
  ucc_get_version(&major, &minor, &patch);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

}  // namespace torch_ucc

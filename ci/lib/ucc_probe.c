/* Proves that a UCC prefix works: library, context, a team of one rank, one allreduce on it.
 * Prints "UCC <version>, UCX <version>" and ends with 0, or prints the call that failed and ends with 1. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucc/api/ucc.h>
#include <ucp/api/ucp.h>

static void check(ucc_status_t status, const char *call) {
  if (status < 0) {
    fprintf(stderr, "%s: %s\n", call, ucc_status_string(status));
    exit(1);
  }
}

/* Out-of-band exchange among one rank. */
static ucc_status_t allgather(void *sent, void *received, size_t size, void *info, void **request) {
  (void)info;
  memcpy(received, sent, size);
  *request = NULL;
  return UCC_OK;
}

static ucc_status_t done(void *request) {
  (void)request;
  return UCC_OK;
}

int main(void) {
  ucc_lib_config_h lib_config;
  ucc_lib_h lib;
  ucc_lib_params_t lib_params = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE, .thread_mode = UCC_THREAD_MULTIPLE};
  check(ucc_lib_config_read(NULL, NULL, &lib_config), "ucc_lib_config_read");
  check(ucc_init(&lib_params, lib_config, &lib), "ucc_init");
  ucc_lib_config_release(lib_config);

  ucc_oob_coll_t oob = {.allgather = allgather, .req_test = done, .req_free = done, .n_oob_eps = 1};
  ucc_context_config_h context_config;
  ucc_context_h context;
  ucc_context_params_t context_params = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB, .oob = oob};
  check(ucc_context_config_read(lib, NULL, &context_config), "ucc_context_config_read");
  check(ucc_context_create(lib, &context_params, context_config, &context), "ucc_context_create");
  ucc_context_config_release(context_config);

  ucc_team_h team;
  ucc_team_params_t team_params = {
      .mask = UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE | UCC_TEAM_PARAM_FIELD_OOB,
      .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
      .oob = oob};
  check(ucc_team_create_post(&context, 1, &team_params, &team), "ucc_team_create_post");
  ucc_status_t status;
  while ((status = ucc_team_create_test(team)) > 0) ucc_context_progress(context);
  check(status, "ucc_team_create_test");

  int32_t in = 42, out = 0;
  ucc_coll_args_t args = {
      .coll_type = UCC_COLL_TYPE_ALLREDUCE,
      .op = UCC_OP_SUM,
      .src.info = {.buffer = &in, .count = 1, .datatype = UCC_DT_INT32, .mem_type = UCC_MEMORY_TYPE_HOST},
      .dst.info = {.buffer = &out, .count = 1, .datatype = UCC_DT_INT32, .mem_type = UCC_MEMORY_TYPE_HOST}};
  ucc_coll_req_h request;
  check(ucc_collective_init(&args, &request, team), "ucc_collective_init");
  check(ucc_collective_post(request), "ucc_collective_post");
  while ((status = ucc_collective_test(request)) > 0) ucc_context_progress(context);
  check(status, "ucc_collective_test");
  check(ucc_collective_finalize(request), "ucc_collective_finalize");
  if (out != in) {
    fprintf(stderr, "allreduce of one rank gave %d instead of %d\n", out, in);
    return 1;
  }

  while ((status = ucc_team_destroy(team)) > 0) {}
  check(status, "ucc_team_destroy");
  check(ucc_context_destroy(context), "ucc_context_destroy");
  check(ucc_finalize(lib), "ucc_finalize");
  printf("UCC %s, UCX %s\n", ucc_get_version_string(), ucp_get_version_string());
  return 0;
}

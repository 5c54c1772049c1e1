// The messages of c10d.
#include <utility>

#include "backend/backend.h"
#include "messages/messages.h"

namespace torch_ucc {

UccBackend::WorkPtr UccBackend::send(Tensors& tensors, int destination, int tag) {
  return serve_message(operation::kSend, destination, tag, [&](Call& call) {
    Staging staging = Staging::of_message(call, lanes_, context_->direct());
    Tensors& staged = staging.read(tensors);
    Prepared prepared = prepare_send(call, staged, staging.memory());
    return launch(std::move(call), std::move(prepared), std::move(staging), c10d::kUnsetTimeout, true);
  });
}

UccBackend::WorkPtr UccBackend::recv(Tensors& tensors, int source, int tag) {
  return serve_message(operation::kRecv, source, tag, [&](Call& call) { return receive(call, tensors); });
}

UccBackend::WorkPtr UccBackend::recvAnysource(Tensors& tensors, int tag) {
  return serve_message(operation::kRecvAnySource, Message::kAnyRank, tag, [&](Call& call) { return receive(call, tensors); });
}

UccBackend::WorkPtr UccBackend::receive(const Call& call, Tensors& tensors) {
  Staging staging = Staging::of_message(call, lanes_, context_->direct());
  Tensors& staged = staging.written(tensors);
  Prepared prepared = prepare_recv(call, staged, staging.memory());
  return launch(call, std::move(prepared), std::move(staging), c10d::kUnsetTimeout, true);
}

}  // namespace torch_ucc

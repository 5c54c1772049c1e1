// The messages of c10d.
#include <utility>

#include "backend/backend.h"
#include "messages/messages.h"

namespace torch_ucc {

UccBackend::WorkPtr UccBackend::send(Tensors& tensors, int destination, int tag) {
  return send(tensors, destination, tag, c10d::kUnsetTimeout);
}

UccBackend::WorkPtr UccBackend::send(Tensors& tensors, int destination, int tag, std::chrono::milliseconds timeout) {
  return serve_message(operation::kSend, destination, tag, [&](Call& call) {
    Staging staging = Staging::of_message(call, lanes_, context_->direct());
    Tensors& staged = staging.read(tensors);
    Prepared prepared = prepare_send(call, staged, staging.memory());
    return launch(std::move(call), std::move(prepared), std::move(staging), timeout, true);
  });
}

UccBackend::WorkPtr UccBackend::recv(Tensors& tensors, int source, int tag) {
  return recv(tensors, source, tag, c10d::kUnsetTimeout);
}

UccBackend::WorkPtr UccBackend::recv(Tensors& tensors, int source, int tag, std::chrono::milliseconds timeout) {
  return serve_message(operation::kRecv, source, tag, [&](Call& call) { return receive(call, tensors, timeout); });
}

UccBackend::WorkPtr UccBackend::recvAnysource(Tensors& tensors, int tag) {
  return serve_message(operation::kRecvAnySource, Message::kAnyRank, tag,
                       [&](Call& call) { return receive(call, tensors, c10d::kUnsetTimeout); });
}

UccBackend::WorkPtr UccBackend::receive(const Call& call, Tensors& tensors, std::chrono::milliseconds timeout) {
  Staging staging = Staging::of_message(call, lanes_, context_->direct());
  Tensors& staged = staging.written(tensors);
  Prepared prepared = prepare_recv(call, staged, staging.memory());
  return launch(call, std::move(prepared), std::move(staging), timeout, true);
}

}  // namespace torch_ucc

#include "ops/effects.h"

#include <algorithm>

#include "ops/tensor_span.h"

namespace torch_ucc {
namespace {

// Addresses of one device mean something else on another.
std::uint32_t address_space(c10::Device device) {
  return device.is_cpu() ? 0
                         : (static_cast<std::uint32_t>(device.type()) << 16U) + 1U +
                               static_cast<std::uint32_t>(static_cast<std::uint8_t>(device.index()));
}

struct Touch {
  Region region;
  std::size_t owner;
  bool writes;
};

// Whether the memory of two owners overlaps, and one of the two writes it. If nothing overlaps,
// this takes the time of a sort.
bool meet(std::vector<Touch>&& touches) {
  std::erase_if(touches, [](const Touch& each) { return each.region.item == 0; });
  std::sort(touches.begin(), touches.end(), [](const Touch& a, const Touch& b) { return a.region.begin < b.region.begin; });
  std::vector<const Touch*> open;  // earlier regions that may reach as far as this one
  for (const Touch& touch : touches) {
    std::erase_if(open, [&](const Touch* before) { return before->region.end() <= touch.region.begin; });
    for (const Touch* const before : open) {
      if (before->owner != touch.owner && (before->writes || touch.writes) && overlap(before->region, touch.region)) {
        return true;
      }
    }
    open.push_back(&touch);
  }
  return false;
}

void add_region(std::vector<Region>& regions, const at::Tensor& tensor) {
  if (Region region = region_of(tensor); region.item != 0) {
    regions.push_back(std::move(region));
  }
}

enum class Access : std::uint8_t { reads, writes };

// A sparse tensor is read where its indices and values lie. A result replaces these two tensors, and does not
// write to their memory: the object that holds them stands for what is written.
void add_regions(std::vector<Region>& regions, const Tensors& tensors, Access access) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.is_sparse()) {
      add_region(regions, tensor);
      continue;
    }
    regions.push_back({.begin = reinterpret_cast<std::uintptr_t>(tensor.unsafeGetTensorImpl()), .item = 1});
    if (access == Access::reads) {
      add_region(regions, tensor._indices());
      add_region(regions, tensor._values());
    }
  }
}

}  // namespace

Region region_of(const at::Tensor& tensor) {
  Region region;
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.numel() == 0) {
    return region;
  }
  region.begin = reinterpret_cast<std::uintptr_t>(source_of(tensor));
  region.space = address_space(tensor.device());
  if (tensor.is_contiguous()) {
    region.item = bytes_of(tensor);
    return region;
  }
  region.item = static_cast<std::size_t>(tensor.element_size());
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) {
      region.dims.push_back({static_cast<std::size_t>(tensor.size(i)),
                             static_cast<std::size_t>(tensor.stride(i)) * static_cast<std::size_t>(tensor.element_size())});
    }
  }
  return region;
}

Effects effects_of(const Prepared& prepared) {
  Effects effects;
  add_regions(effects.reads, prepared.inputs, Access::reads);
  if (prepared.reads_outputs) {
    add_regions(effects.reads, prepared.outputs, Access::reads);
  }
  if (prepared.writes_outputs) {
    add_regions(effects.writes, prepared.outputs, Access::writes);
  }
  return effects;
}

Effects effects_when_filled(const Prepared& prepared) {
  Effects effects = effects_of(prepared);
  effects.reads.clear();
  for (const at::Tensor& input : prepared.inputs) {
    const bool is_kept = std::any_of(prepared.callers.begin(), prepared.callers.end(),
                                     [&](const at::Tensor& kept) { return kept.is_alias_of(input); });
    if (is_kept) {
      add_regions(effects.reads, {input}, Access::reads);
    }
  }
  if (prepared.reads_outputs) {
    add_regions(effects.reads, prepared.outputs, Access::reads);
  }
  return effects;
}

bool share_memory(const Tensors& tensors) {
  std::vector<Touch> touches;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    touches.push_back({region_of(tensors[i]), i, true});
  }
  return meet(std::move(touches));
}

bool share_memory(c10::ArrayRef<Prepared*> calls) {
  std::vector<Touch> touches;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Effects effects = effects_of(*calls[i]);
    for (Region& region : effects.reads) {
      touches.push_back({std::move(region), i, false});
    }
    for (Region& region : effects.writes) {
      touches.push_back({std::move(region), i, true});
    }
  }
  return meet(std::move(touches));
}

}  // namespace torch_ucc

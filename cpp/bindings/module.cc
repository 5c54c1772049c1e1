// The Python module torch_ucc._core. Names, docstrings and the GIL; no logic.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/reconfigurable.h"
#include "base/interrupt.h"
#include "bindings/python_site.h"
#include "bootstrap/fresh_prefix.h"
#include "store/c10d_store.h"
#include "trace/dump.h"
#include "trace/dumper.h"
#include "trace/site.h"
#include "ucc/context_config.h"
#include "ucc/library.h"
#include "ucx/config.h"
#include "ucx/probe.h"
#include "work/delivery.h"
#include "work/errors.h"

namespace py = pybind11;

namespace torch_ucc {
namespace {

using std::chrono::milliseconds;

// Throws what Python's signal handlers raise, mostly KeyboardInterrupt. Python runs them only in
// its main thread.
void raise_python_signals() {
  thread_local const bool main = ::getpid() == ::gettid();
  if (!main || Py_IsInitialized() == 0) {
    return;
  }
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

// Whether the error is KeyboardInterrupt or SystemExit, which are not failures of the code that
// raises them.
bool is_python_interrupt(const std::exception& error) {
  const auto* const raised = dynamic_cast<const py::error_already_set*>(&error);
  if (raised == nullptr) {
    return false;
  }
  const py::gil_scoped_acquire gil;
  return !raised->matches(PyExc_Exception);
}

Place find_place(const c10::intrusive_ptr<c10d::Store>& store, int rank, milliseconds timeout, std::string group_id,
                 std::shared_ptr<const World> world, std::vector<std::int64_t> global_ranks, const Settings& settings) {
  return for_user([&] {
    const GroupSpec group{
        std::make_shared<C10dStore>(store), std::move(group_id), std::move(world), std::move(global_ranks), rank, timeout};
    return CommContext::find_place(group, settings);
  });
}

c10::intrusive_ptr<UccBackend> create_backend(const Place& place, const Settings& settings) {
  return for_user([&] { return c10::make_intrusive<UccBackend>(place, settings); });
}

// Calls `function` without the GIL and returns its result.
template <typename Function>
std::vector<py::bytes> exchanged(Function&& function) {
  std::vector<std::string> values;
  {
    const py::gil_scoped_release release;
    values = for_user(std::forward<Function>(function));
  }
  return {values.begin(), values.end()};
}

std::vector<py::bytes> exchange(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, milliseconds timeout,
                                const std::string& mine) {
  return exchanged([&] {
    C10dStore ours(store);
    return FreshPrefix("exchange", rank, size).exchange(ours, mine, Deadline::after(timeout));
  });
}

std::vector<py::bytes> exchange_in(const Place& place, const std::string& mine) {
  return exchanged([&] { return place.prefix->exchange(*place.group.store, mine, Deadline::after(place.group.timeout)); });
}

void bind_settings(py::module_& module) {
  py::class_<Settings>(module, "Settings", "The settings of a context. torch_ucc.config fills them.")
      .def(py::init<>())
      .def_readwrite("spin", &Settings::spin)
      .def_readwrite("yield_for", &Settings::yield)
      .def_readwrite("pause_min", &Settings::pause_min)
      .def_readwrite("pause_max", &Settings::pause_max)
      .def_readwrite("segment_bytes", &Settings::segment_bytes)
      .def_readwrite("segment_window", &Settings::segment_window)
      .def_readwrite("cross_check", &Settings::cross_check)
      .def_readwrite("nan_check", &Settings::nan_check)
      .def_readwrite("blocking_wait", &Settings::blocking_wait)
      .def_readwrite("direct", &Settings::direct)
      .def_readwrite("native", &Settings::native)
      .def_readwrite("host_path", &Settings::host_path)
      .def_readwrite("levels_from", &Settings::levels_from)
      .def_readwrite("life_lines", &Settings::life_lines)
      .def_readwrite("close_timeout", &Settings::close_timeout)
      .def_readwrite("agreed", &Settings::agreed)
      .def_readwrite("ucx", &Settings::ucx)
      .def_readwrite("ucc", &Settings::ucc)
      .def_readwrite("own_ucx", &Settings::own_ucx)
      .def_readwrite("own_ucc", &Settings::own_ucc)
      .def_readwrite("cores", &Settings::cores);
}

using Counted = std::tuple<const char*, const char*, std::uint64_t, std::uint64_t, std::uint64_t>;

std::vector<Counted> counters(const UccBackend& backend) {
  std::vector<Counted> called;
  for (const Operation& operation : operation::kTable) {
    for (const trace::Route route : trace::kRoutes) {
      const trace::Counters& each = backend.counters()[operation::index_of(operation)][route];
      if (each.calls() != 0 || each.waited_ns() != 0) {
        called.emplace_back(operation.name, trace::name(route), each.calls(), each.bytes(), each.waited_ns());
      }
    }
  }
  return called;
}

std::tuple<std::uintptr_t, std::size_t, std::uint64_t> engine(const UccBackend& backend) {
  const Engine& engine = backend.context()->engine();
  return {reinterpret_cast<std::uintptr_t>(&engine), engine.outstanding(), engine.sleeps()};
}

using Named = std::map<std::string, std::string>;

void bind_backend(py::module_& module) {
  py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(module, "Options", "Options of a ucc process group.")
      .def(py::init([](milliseconds timeout, const Named& ucc, const Named& ucx) {
             return c10::make_intrusive<Options>(timeout, NamedValues(ucc.begin(), ucc.end()),
                                                 NamedValues(ucx.begin(), ucx.end()));
           }),
           py::arg("timeout") = c10d::kUnsetTimeout, py::kw_only(), py::arg("ucc") = Named(), py::arg("ucx") = Named())
      .def_property_readonly(
          "ucc", [](const Options& options) { return Named(options.ucc.begin(), options.ucc.end()); },
          "Options of UCC's context, by their names without UCC_.")
      .def_property_readonly(
          "ucx", [](const Options& options) { return Named(options.ucx.begin(), options.ucx.end()); },
          "Options of UCX, by their names without UCX_.")
      .def("__deepcopy__", [](const Options& options, const py::dict&) { return c10::make_intrusive<Options>(options); });
  py::class_<UccBackend, c10::intrusive_ptr<UccBackend>, c10d::Backend>(module, "UccBackend", "The backend of one process group.")
      .def("get_error", &UccBackend::getError, "The failure after which the group cannot be used. SUCCESS if there is none.")
      .def("_set_default_timeout", &UccBackend::setTimeout, py::arg("timeout"), py::call_guard<py::gil_scoped_release>(),
           "The name that torch's own backends have for set_timeout().")
      .def_property_readonly("options", &UccBackend::getBackendOptions)
      .def_property_readonly(
          "world", [](const UccBackend& backend) { return std::const_pointer_cast<World>(backend.context()->world()); },
          "The world of the group.")
      .def_property_readonly(
          "context", [](const UccBackend& backend) { return backend.context()->number(); },
          "The number of the context. Groups of this process with the same number share UCC's context and its plan.")
      .def_property_readonly("number", &UccBackend::number, "The number by which the flight recorder names the group.")
      .def_property_readonly("has_levels", &UccBackend::has_levels,
                             "Whether collectives of CPU tensors can use shared memory on each host and UCC between hosts.")
      .def_property_readonly("has_even_levels", &UccBackend::has_even_levels,
                             "Whether the group has levels and the same number of ranks on each host.")
      .def_property_readonly("why_not_through_memory", &UccBackend::why_not_through_memory,
                             "Why collectives of CPU tensors do not go through memory that the ranks share; empty if they do.")
      .def("drop_coalescing", &UccBackend::dropCoalescing, py::arg("why"), py::call_guard<py::gil_scoped_release>(),
           "Drop the calls that this thread is coalescing. None of them is sent. To be called after an exception.")
      .def("counters", &counters,
           "For each operation that was called and each route it took: name, route, calls, bytes, nanoseconds waited.")
      .def("engine", &engine,
           "The engine of this group, which other groups may share: its number, operations in flight, sleeps so far.")
      .def(
          "perform_nocolor_split", [](const UccBackend&, const py::object&) {}, py::arg("device"),
          "Torch calls this on ranks outside a new group. It does nothing: only members create a group.");
  py::class_<World, std::shared_ptr<World>>(module, "World",
                                            "Identifies the processes of a default group and of the groups that derive from it.")
      .def(py::init([](std::size_t size) { return std::make_shared<World>(World{size}); }), py::arg("size"));
  py::class_<Place>(module, "Place", "The context on which a group will be created.")
      .def_property_readonly(
          "is_shared", [](const Place& place) { return place.context != nullptr; },
          "Whether another group already uses this context. If not, the group needs a plan.")
      .def("exchange", &exchange_in, py::arg("mine"),
           "Return the `mine` of each rank of the group, by rank. Blocks until all ranks call it. Only if not shared.");
  module.def("find_place", &find_place, py::arg("store"), py::arg("rank"), py::arg("timeout"), py::arg("group_id"),
             py::arg("world"), py::arg("global_ranks"), py::arg("settings"), py::call_guard<py::gil_scoped_release>(),
             "Find the context for a group. To share one, blocks until rank 0 calls it. Raises if its options differ.");
  module.def(
      "check_ucc_options", [](const NamedValues& options) { for_user([&] { read_ucc_context_config(options); }); },
      py::arg("options"), py::call_guard<py::gil_scoped_release>(), "Raise an error if a UCC context refuses an option.");
  module.def(
      "check_ucx_options", [](const NamedValues& options) { for_user([&] { read_ucx_config(options); }); }, py::arg("options"),
      "Raise an error if UCX refuses an option.");
  module.def("exchange", &exchange, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("mine"),
             "Return the `mine` of each of `size` processes that meet in a store, by rank. Blocks until all call it.");
  module.def("create_backend", &create_backend, py::arg("place"), py::arg("settings"), py::call_guard<py::gil_scoped_release>(),
             "Create this process's member of a group. Blocks until the other members do the same.");
}

#if TUCC_TORCH_HAS_RECONFIGURE
// A function of Python that may be copied and dropped without the GIL.
std::shared_ptr<py::function> without_gil(py::function function) {
  return {new py::function(std::move(function)), [](py::function* held) {
            if (Py_IsInitialized() != 0) {
              const py::gil_scoped_acquire gil;
              delete held;
            }
          }};
}

void bind_reconfigurable(py::module_& module) {
  py::class_<Reconfigurable, c10::intrusive_ptr<Reconfigurable>, c10d::Backend>(
      module, "Reconfigurable", "The backend of a group whose members can be replaced.")
      .def("_set_default_timeout", &Reconfigurable::setTimeout, py::arg("timeout"), py::call_guard<py::gil_scoped_release>(),
           "The name that torch's own backends have for set_timeout().")
      .def_property_readonly("options", &Reconfigurable::getBackendOptions)
      .def_property_readonly("current", &Reconfigurable::current, "The group of the present members; None if there is none.");
  module.def(
      "create_reconfigurable",
      [](c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string name, milliseconds timeout, py::function make) {
        const auto call = [made_by = without_gil(std::move(make))](const Reconfigurable::Members& members) {
          const py::gil_scoped_acquire gil;
          return (*made_by)(members.store, members.rank, members.size, members.name, members.timeout)
              .cast<Reconfigurable::Member>();
        };
        return c10::make_intrusive<Reconfigurable>(std::move(store), rank, size, std::move(name), timeout, call);
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("name"), py::arg("timeout"), py::arg("make"),
      "Create a group without members. Each reconfigure() calls `make` to create the group of the new members.");
}
#endif

void bind_probe(py::module_& module) {
  py::class_<TransportProbe>(module, "TransportProbe", "Asks UCX which transports it chooses towards a peer.")
      .def(py::init(
               [](const NamedValues& options) { return for_user([&] { return std::make_unique<TransportProbe>(options); }); }),
           py::arg("options"))
      .def("address", [](const TransportProbe& probe) { return py::bytes(for_user([&] { return probe.address(); })); })
      .def(
          "transports_to",
          [](const TransportProbe& probe, const py::bytes& address) {
            return for_user([&] { return probe.transports_to(std::string(address)); });
          },
          py::arg("address"));
  module.def("ucx_version", &ucx_library_version, "The version of the UCX library that was loaded.");
}

void bind_trace(py::module_& module) {
  c10d::control_plane::registerHandler("torch_ucc_dump", [](const auto&, auto& response) {
    response.setContent(trace::to_json(trace::recorder(), "debug server"), "application/json");
  });
  // Handlers outlive the interpreter, so no handler may hold a Python object.
  c10d::control_plane::registerHandler("torch_ucc_metrics", [](const auto&, auto& response) {
    const py::gil_scoped_acquire gil;
    const py::module_ metrics = py::module_::import("torch_ucc.tracing.metrics");
    response.setContent(metrics.attr("metrics")().template cast<std::string>(),
                        metrics.attr("CONTENT_TYPE").template cast<std::string>());
  });
  module.def(
      "flight_recorder",
      [](const std::string& reason, std::uint64_t since) { return trace::to_json(trace::recorder(), reason, since); },
      py::arg("reason") = "call", py::arg("since") = 1, py::call_guard<py::gil_scoped_release>(),
      "Return the records of operations with an id from `since` on, as JSON text.");
  module.def(
      "dump_on_failure", [](const std::string& directory) { for_user([&] { trace::start_dumper(directory); }); },
      py::arg("directory"), "From now on, write the recorder to a file in this directory when an operation fails.");
  module.def(
      "record_operations", [](bool on) { trace::recorder().set_on(on); }, py::arg("on"),
      "Turn the flight recorder off or on, to measure its cost. It is on from the start.");
  module.def(
      "tell", [](const std::string& key, const std::string& json) { trace::recorder().journal().set(key, json); }, py::arg("key"),
      py::arg("json"), "Set a fact that other processes of this host can read: see trace/journal.h.");
  module.def("dump_at_signal", &trace::dump_at_signal,
             "From now on, also write the file of dump_on_failure() when SIGUSR2 arrives.");
  module.def(
      "record_sites", [](bool on) { trace::site_capture.store(on ? python_site : nullptr); }, py::arg("on"),
      "Record the Python stack of each call, or stop doing so. A call then takes some microseconds longer.");
}

}  // namespace
}  // namespace torch_ucc

PYBIND11_MODULE(_core, module) {
  py::module_::import("torch._C._distributed_c10d");  // the base classes
  torch_ucc::interrupt_check.store(torch_ucc::raise_python_signals);
  torch_ucc::is_interrupt.store(torch_ucc::is_python_interrupt);
  torch_ucc::bind_settings(module);
  torch_ucc::bind_backend(module);
#if TUCC_TORCH_HAS_RECONFIGURE
  torch_ucc::bind_reconfigurable(module);
#endif
  torch_ucc::bind_probe(module);
  torch_ucc::bind_trace(module);
  module.def(
      "operations",
      [] {
        std::vector<std::string> names;
        names.reserve(torch_ucc::operation::kTable.size());
        for (const torch_ucc::Operation& operation : torch_ucc::operation::kTable) {
          if (torch_ucc::operation::is_offered(operation)) {
            names.emplace_back(operation.name);
          }
        }
        std::sort(names.begin(), names.end());
        return names;
      },
      "The names of all operations that users can call with this torch, sorted.");
  module.def("ucc_version", &torch_ucc::ucc_library_version, "The version of the UCC library that was loaded.");
  module.def("open_contexts", &torch_ucc::CommContext::open_contexts, "The numbers of the open contexts of this process.");
  module.def("close_all", &torch_ucc::CommContext::close_all, py::arg("limit"), py::call_guard<py::gil_scoped_release>(),
             "Close every context of this process, each within the limit and two seconds. To be called at exit.");
  module.def("wait_for_callbacks", &torch_ucc::Delivery::wait_for_running, py::call_guard<py::gil_scoped_release>(),
             "Wait, without a limit, until no callback of a future runs in this process.");
}

//! Tests of the library through the crate `nvml-wrapper`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Instant;

use common::{Server, in_folder, nvml};
use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    Api, Brand, Clock, ClockId, ComputeMode, EccCounter, MemoryError, MemoryLocation,
    P2pCapabilitiesIndex, P2pStatus, PerformanceState, RetirementCause, Sampling,
    TemperatureSensor, TemperatureThreshold, TopologyLevel,
};
use nvml_wrapper::enums::device::{BusType, DeviceArchitecture, SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::high_level::{Event, EventLoopProvider as _};
use nvml_wrapper::structs::device::FieldId;
use softgpu_wire::message::ProcessLine;
use testing::{PATIENCE, until};

const GIB: u64 = 1024 * 1024 * 1024;
const H100: &str = "[[gpu]]\npart = \"H100\"";

fn is_unsupported<T>(result: Result<T, NvmlError>) -> bool {
    matches!(result, Err(NvmlError::NotSupported))
}

fn is_lost<T>(result: Result<T, NvmlError>) -> bool {
    matches!(result, Err(NvmlError::GpuLost))
}

#[test]
fn the_wrappers_first_example_works() {
    in_folder("the_wrappers_first_example_works", H100, |folder| {
        let nvml = nvml();
        assert_eq!(nvml.sys_driver_version().unwrap(), "580.82.07");
        assert_eq!(nvml.sys_nvml_version().unwrap(), "13.580.82.07");
        assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
        assert_eq!(nvml.device_count().unwrap(), 1);
        assert!(matches!(
            nvml.device_by_index(1),
            Err(NvmlError::InvalidArg)
        ));
        let device = nvml.device_by_index(0).unwrap();
        assert_eq!(device.name().unwrap(), "NVIDIA H100 80GB HBM3");
        assert_eq!(device.temperature(TemperatureSensor::Gpu).unwrap(), 32);
        let memory = device.memory_info().unwrap();
        assert_eq!((memory.total, memory.used), (81_559 << 20, 0));
        assert_eq!(memory.free + memory.reserved, memory.total);
        assert_eq!(device.clock_info(Clock::Graphics).unwrap(), 345);
        assert_eq!(device.clock_info(Clock::Memory).unwrap(), 2619);
        assert_eq!(device.current_pcie_link_gen().unwrap(), 5);
        assert_eq!(device.max_pcie_link_gen().unwrap(), 5);
        assert_eq!(device.current_pcie_link_width().unwrap(), 16);
        assert_eq!(device.max_pcie_link_width().unwrap(), 16);
        assert_eq!(device.pcie_link_speed().unwrap(), 32_000);
        let speed = device.max_pcie_link_speed().unwrap();
        assert_eq!(speed.as_integer(), Some(32_000));
        assert_eq!(device.num_cores().unwrap(), 132 * 128);
        assert_eq!(device.architecture().unwrap(), DeviceArchitecture::Hopper);
        assert!(!device.is_multi_gpu_board().unwrap());
        // Variable state comes from a server, once one runs.
        let server = Server::start(folder);
        server.state().used.insert(0, 3 * GIB);
        server.state().busy.insert(0, [500_000, 125_000]);
        let memory = device.memory_info().unwrap();
        assert_eq!(
            (memory.used, memory.free),
            (3 * GIB, memory.total - 3 * GIB)
        );
        let rates = device.utilization_rates().unwrap();
        assert_eq!((rates.gpu, rates.memory), (50, 13));
        assert_eq!(device.clock_info(Clock::SM).unwrap(), 1980);
        assert!(device.power_usage().unwrap() > 300_000);
        assert!(device.temperature(TemperatureSensor::Gpu).unwrap() > 32);
        // A restarted server is found at once; a stopped one counts as none.
        drop(server);
        let server = Server::start(folder);
        assert_eq!(device.memory_info().unwrap().used, 0);
        server.state().used.insert(0, GIB);
        assert_eq!(device.memory_info().unwrap().used, GIB);
        drop(server);
        assert_eq!(device.memory_info().unwrap().used, 0);
        assert_eq!(device.utilization_rates().unwrap().gpu, 0);
        // A server with another configuration is not used.
        let server = Server::start(folder);
        server.state().used.insert(0, GIB);
        server.state().config = Some("bytes = 2".to_owned())
            .map(|text| softgpu_wire::config::Config::parse(&text).unwrap());
        assert_eq!(device.memory_info().unwrap().used, 0);
        server.state().config = None;
        assert_eq!(device.memory_info().unwrap().used, GIB);
        // A server that accepts but does not answer is not waited for.
        drop(server);
        let silent = softgpu_wire::softgpu_dir::listen_in(folder).unwrap();
        assert_eq!(device.memory_info().unwrap().used, 0);
        drop(silent);
        nvml.shutdown().unwrap();
    });
}

#[test]
fn devices_are_found_by_all_their_names() {
    let config = "[[gpu]]\npart = \"V100\"\ncount = 2\n[[gpu]]\npart = \"A100\"";
    in_folder("devices_are_found_by_all_their_names", config, |_| {
        let nvml = nvml();
        let all: Vec<_> = (0..nvml.device_count().unwrap())
            .map(|at| nvml.device_by_index(at).unwrap())
            .collect();
        assert_eq!(all.len(), 3);
        for (at, device) in all.iter().enumerate() {
            let uuid = device.uuid().unwrap();
            assert!(uuid.starts_with("GPU-") && uuid.len() == 40, "{uuid}");
            let by_uuid = nvml.device_by_uuid(uuid).unwrap();
            let pci = device.pci_info().unwrap();
            assert_eq!(pci.bus_id, format!("00000000:{:02X}:00.0", at + 1));
            let by_place = nvml.device_by_pci_bus_id(pci.bus_id).unwrap();
            #[expect(deprecated, reason = "the function is exported")]
            let by_serial = nvml.device_by_serial(device.serial().unwrap()).unwrap();
            for found in [by_uuid, by_place, by_serial] {
                assert_eq!(found.index().unwrap() as usize, at);
                assert_eq!(found.minor_number().unwrap() as usize, at);
            }
        }
        assert_eq!(all[0].brand().unwrap(), Brand::Tesla);
        assert_eq!(all[2].brand().unwrap(), Brand::Nvidia);
        for (at, capability) in [(0, (7, 0)), (2, (8, 0))] {
            let known = all[at].cuda_compute_capability().unwrap();
            assert_eq!((known.major, known.minor), capability);
        }
        assert!(is_unsupported(all[0].mig_mode()));
        assert!(matches!(
            nvml.device_by_uuid("GPU-none"),
            Err(NvmlError::NotFound)
        ));
        assert!(matches!(
            nvml.device_by_pci_bus_id("00000000:77:00.0"),
            Err(NvmlError::NotFound)
        ));
        assert!(matches!(
            nvml.device_by_pci_bus_id("nowhere"),
            Err(NvmlError::InvalidArg)
        ));
    });
}

#[test]
fn queries_of_a_gpu_succeed_or_are_refused() {
    in_folder("queries_of_a_gpu_succeed_or_are_refused", H100, |_| {
        let nvml = nvml();
        let mut device = nvml.device_by_index(0).unwrap();
        assert_eq!(nvml.unit_count().unwrap(), 0);
        assert!(nvml.hic_versions().unwrap().is_empty());
        assert_eq!(nvml.topology_gpu_set(0).unwrap().len(), 1);
        let own = std::process::id();
        let name = nvml.sys_process_name(own, 4096).unwrap();
        assert!(name.contains("wrapper"), "{name}");
        assert!(matches!(
            nvml.sys_process_name(u32::MAX, 64),
            Err(NvmlError::NotFound)
        ));
        assert_eq!(device.board_part_number().unwrap(), "SOFTGPU-H100");
        assert_eq!(device.vbios_version().unwrap(), "09.00.00.00.00");
        assert_eq!(device.gsp_firmware_version().unwrap(), "580.82.07");
        assert_eq!(device.bus_type().unwrap(), BusType::Pcie);
        assert_eq!(device.memory_bus_width().unwrap(), 5120);
        assert_eq!(device.bar1_memory_info().unwrap().total, 128 * GIB);
        assert_eq!(device.performance_state().unwrap(), PerformanceState::Zero);
        assert_eq!(device.power_management_limit().unwrap(), 700_000);
        assert_eq!(device.power_management_limit_default().unwrap(), 700_000);
        assert_eq!(device.enforced_power_limit().unwrap(), 700_000);
        let limits = device.power_management_limit_constraints().unwrap();
        assert_eq!((limits.min_limit, limits.max_limit), (200_000, 700_000));
        assert_eq!(device.max_clock_info(Clock::SM).unwrap(), 1980);
        assert_eq!(device.applications_clock(Clock::SM).unwrap(), 1980);
        assert_eq!(device.clock(Clock::SM, ClockId::Current).unwrap(), 345);
        assert_eq!(device.supported_memory_clocks().unwrap(), [2619]);
        assert_eq!(device.supported_graphics_clocks(2619).unwrap()[0], 1980);
        assert_eq!(
            device.current_throttle_reasons().unwrap(),
            ThrottleReasons::GPU_IDLE
        );
        let threshold = device.temperature_threshold(TemperatureThreshold::Shutdown);
        assert_eq!(threshold.unwrap(), 95);
        assert!(device.is_ecc_enabled().unwrap().currently_enabled);
        let counter = EccCounter::Volatile;
        let errors = device.total_ecc_errors(MemoryError::Corrected, counter);
        assert_eq!(errors.unwrap(), 0);
        let place = MemoryLocation::Device;
        let errors = device.memory_error_counter(MemoryError::Corrected, counter, place);
        assert_eq!(errors.unwrap(), 0);
        assert_eq!(device.encoder_utilization().unwrap().utilization, 0);
        assert_eq!(device.decoder_utilization().unwrap().utilization, 0);
        assert_eq!(device.compute_mode().unwrap(), ComputeMode::Default);
        device
            .set_compute_mode(ComputeMode::ExclusiveProcess)
            .unwrap();
        assert_eq!(
            device.compute_mode().unwrap(),
            ComputeMode::ExclusiveProcess
        );
        assert!(device.is_in_persistent_mode().unwrap());
        assert!(!device.is_api_restricted(Api::ApplicationClocks).unwrap());
        assert!(!device.is_accounting_enabled().unwrap());
        assert!(!device.is_display_active().unwrap());
        let cpus = device.cpu_affinity(16).unwrap();
        assert!(cpus.iter().any(|&word| word != 0));
        assert_eq!(device.num_fans().unwrap(), 0);
        let samples = device.samples(Sampling::GpuUtilization, None).unwrap();
        assert!(matches!(samples[..], [ref one] if one.value == SampleValue::U32(0)));
        assert!(device.running_compute_processes().unwrap().is_empty());
        assert!(device.running_graphics_processes().unwrap().is_empty());
        let mode = device.mig_mode().unwrap();
        assert_eq!((mode.current, mode.pending), (0, 0));
        assert_eq!(device.mig_device_count().unwrap(), 0);
        assert!(!device.mig_is_mig_device_handle().unwrap());
        assert!(is_unsupported(device.fan_speed(0)));
        assert!(is_unsupported(device.total_energy_consumption()));
        assert!(is_unsupported(device.accounting_pids()));
        let pages = device.retired_pages(RetirementCause::DoubleBitEccError);
        assert!(is_unsupported(pages));
        assert!(is_unsupported(device.link_wrapper_for(0).is_active()));
        assert!(is_unsupported(device.set_power_management_limit(500_000)));
        let fields = device.field_values_for(&[FieldId(1), FieldId(83)]).unwrap();
        assert_eq!(fields.len(), 2);
        for field in fields {
            assert!(is_unsupported(field.unwrap().value));
        }
        assert!(!device.gpm_support().unwrap());
    });
}

#[test]
fn distances_between_gpus_follow_the_configuration() {
    let config = "[[gpu]]\npart = \"V100\"\ncount = 3\n\
                  [[switch]]\ngpus = [0, 1]\nuplink-bytes-per-second = 12000000000\n\
                  [[nvlink]]\ngpus = [1, 2]\nbytes-per-second = 44000000000";
    in_folder(
        "distances_between_gpus_follow_the_configuration",
        config,
        |_| {
            let nvml = nvml();
            let gpu = |at| nvml.device_by_index(at).unwrap();
            let [zero, one, two] = [gpu(0), gpu(1), gpu(2)];
            let level = |one: &Device<'_>, other: &Device<'_>| {
                one.topology_common_ancestor(clone(&nvml, other)).unwrap()
            };
            assert_eq!(level(&zero, &one), TopologyLevel::Single);
            assert_eq!(level(&one, &two), TopologyLevel::Node);
            let near = zero.topology_nearest_gpus(TopologyLevel::Single).unwrap();
            assert_eq!(near.len(), 1);
            let link = one.link_wrapper_for(0);
            assert!(link.is_active().unwrap());
            assert_eq!(link.version().unwrap(), 2);
            assert_eq!(link.remote_pci_info().unwrap().bus, 3);
            assert!(!one.link_wrapper_for(1).is_active().unwrap());
            assert!(is_unsupported(zero.link_wrapper_for(0).is_active()));
            let status = |one: &Device<'_>, other: &Device<'_>, capability| {
                one.p2p_status(other, capability).unwrap()
            };
            let [read, nvlink] = [P2pCapabilitiesIndex::Read, P2pCapabilitiesIndex::NvLink];
            assert_eq!(status(&zero, &one, read), P2pStatus::Ok);
            assert_eq!(status(&one, &two, nvlink), P2pStatus::Ok);
            assert_ne!(status(&zero, &one, nvlink), P2pStatus::Ok);
        },
    );
}

fn clone<'nvml>(nvml: &'nvml nvml_wrapper::Nvml, device: &Device<'_>) -> Device<'nvml> {
    nvml.device_by_index(device.index().unwrap()).unwrap()
}

#[test]
fn processes_are_listed_with_their_memory_and_share() {
    let test = "processes_are_listed_with_their_memory_and_share";
    in_folder(test, H100, |folder| {
        let nvml = nvml();
        let server = Server::start(folder);
        let device = nvml.device_by_index(0).unwrap();
        let line = |pid, memory, mps, millisms_ns| ProcessLine {
            pid,
            memory,
            mps,
            millisms_ns,
            contexts: 1,
            ..ProcessLine::default()
        };
        server.state().processes = vec![line(10, GIB, 0, 0), line(11, 2 * GIB, 1, 0)];
        let found = device.running_compute_processes().unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|process| {
                (
                    process.pid,
                    process.used_gpu_memory.clone(),
                    process.gpu_instance_id,
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                (10, UsedGpuMemory::Used(GIB), None),
                (11, UsedGpuMemory::Used(2 * GIB), None)
            ]
        );
        let clients = device.mps_running_compute_processes();
        let clients: Vec<_> = clients.unwrap().iter().map(|process| process.pid).collect();
        assert_eq!(clients, [11]);
        assert!(matches!(
            device.process_utilization_stats(None),
            Err(NvmlError::NotFound)
        ));
        // More than can fit into the time that passes here: 100 %.
        server.state().processes = vec![line(10, GIB, 0, u64::MAX), line(11, GIB, 1, 0)];
        let begin = Instant::now();
        let stats = loop {
            match device.process_utilization_stats(None) {
                Err(NvmlError::NotFound) => {
                    assert!(begin.elapsed() < PATIENCE, "no sample within {PATIENCE:?}")
                }
                stats => break stats.unwrap(),
            }
        };
        let stats: Vec<_> = stats.iter().map(|one| (one.pid, one.sm_util)).collect();
        assert_eq!(stats, [(10, 100), (11, 0)]);
    });
}

#[test]
fn an_xid_is_an_event_and_a_lost_gpu_stays_lost() {
    let config = "[[gpu]]\npart = \"H100\"\ncount = 2";
    in_folder(
        "an_xid_is_an_event_and_a_lost_gpu_stays_lost",
        config,
        |folder| {
            let nvml = nvml();
            let server = Server::start(folder);
            let [first, second] = [0, 1].map(|at| nvml.device_by_index(at).unwrap());
            let kinds = first.supported_event_types().unwrap();
            assert!(kinds.contains(EventTypes::CRITICAL_XID_ERROR));
            let set = nvml.create_event_set().unwrap();
            let set = first.register_events(kinds, set).unwrap();
            assert!(matches!(set.wait(10), Err(NvmlError::Timeout)));
            // Events of a GPU that is not registered are not reported.
            server.inject(1, 13);
            server.inject(0, 31);
            let event = set.wait(20_000).unwrap();
            assert_eq!(event.event_type, EventTypes::CRITICAL_XID_ERROR);
            assert_eq!(event.device.index().unwrap(), 0);
            let data = event.event_data.unwrap();
            assert!(format!("{data:?}").contains("31"), "{data:?}");
            assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));
            // During a wait, other calls proceed, and a new event ends the wait.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!(second.index().unwrap(), 1);
                    server.inject(0, 79);
                });
                let event = set.wait(20_000).unwrap();
                assert!(format!("{:?}", event.event_data).contains("79"));
            });
            assert!(is_lost(set.wait(20_000)));
            assert!(is_lost(first.name()));
            assert!(is_lost(first.memory_info()));
            assert!(is_lost(first.utilization_rates()));
            assert!(is_lost(nvml.device_by_index(0)));
            assert_eq!(nvml.device_count().unwrap(), 2);
            assert_eq!(second.name().unwrap(), "NVIDIA H100 80GB HBM3");
            assert!(matches!(
                first.topology_common_ancestor(clone(&nvml, &second)),
                Err(NvmlError::GpuLost)
            ));
        },
    );
}

#[test]
fn the_wrappers_event_loop_survives_a_new_server() {
    let test = "the_wrappers_event_loop_survives_a_new_server";
    in_folder(test, H100, |folder| {
        let nvml = nvml();
        let device = nvml.device_by_index(0).unwrap();
        // No server listens at first, and the first one ends.
        let mut events = nvml.create_event_loop(vec![&device]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let server = Server::start(folder);
                until("an observer is connected", || server.watchers() > 0);
                drop(server);
                let server = Server::start(folder);
                until("an observer is connected", || server.watchers() > 0);
                server.inject(0, 48);
            });
            events.run_forever(|event, state| {
                let xid = XidError::Value(48);
                assert!(matches!(event.unwrap(), Event::CriticalXidError(_, own) if own == xid));
                state.interrupt();
            });
        });
    });
}

#[track_caller]
#[test]
fn an_unusable_folder_means_no_driver() {
    let test = "an_unusable_folder_means_no_driver";
    in_folder(test, "[[gpu]]\npart = \"none\"", |folder| {
        let library = common::library();
        let init = || {
            nvml_wrapper::Nvml::builder()
                .lib_path(library.as_os_str())
                .init()
        };
        assert!(matches!(init(), Err(NvmlError::DriverNotLoaded)));
        // Without a configuration file there is one GPU.
        std::fs::remove_file(folder.join("softgpu.toml")).unwrap();
        assert_eq!(init().unwrap().device_count().unwrap(), 1);
        std::fs::write(
            folder.join("softgpu.toml"),
            "[[gpu]]\npart = \"V100\"\ncount = 4",
        )
        .unwrap();
        assert_eq!(init().unwrap().device_count().unwrap(), 4);
    });
}

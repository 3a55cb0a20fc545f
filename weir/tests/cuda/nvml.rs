//! What NVML tells while programs run: through the crate `nvml-wrapper`, as any program would ask.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use softgpu_wire::identity::uuid_text;
use softgpu_wire::place::VARIABLE;

use crate::place::{Place, until};

const MIB: u64 = 1 << 20;
/// What a context of an H100 keeps.
const RESIDUE: u64 = 400 * MIB;
const DEVICE_UNAVAILABLE: u32 = 46;

/// Set in the process in which a test asks.
const ASKS: &str = "WEIR_TEST_ASKS";

/// Has a test ask in a process of its own, since the library finds its folder by the environment.
fn asks(test: &str, arguments: &[&str], ask: impl FnOnce(&Place, &Nvml)) {
    if std::env::var_os(ASKS).is_some() {
        let folder = PathBuf::from(std::env::var_os(VARIABLE).unwrap());
        let place = Place::at(folder, arguments);
        let library = place.folder().join("libnvidia-ml.so.1");
        let nvml = Nvml::builder()
            .lib_path(library.as_os_str())
            .init()
            .unwrap();
        ask(&place, &nvml);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args([
            &format!("nvml::{test}"),
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(VARIABLE, folder.path())
        .env(ASKS, OsStr::new("1"))
        .status()
        .unwrap();
    assert!(status.success());
}

fn first(nvml: &Nvml) -> Device<'_> {
    nvml.device_by_index(0).unwrap()
}

fn used(nvml: &Nvml) -> u64 {
    first(nvml).memory_info().unwrap().used
}

#[test]
fn what_the_wrappers_example_prints() {
    let test = "what_the_wrappers_example_prints";
    asks(test, &["--gpu", "H100", "--gpus", "2"], |_, nvml| {
        assert_eq!(nvml.device_count().unwrap(), 2);
        assert!(nvml.sys_cuda_driver_version().unwrap() >= 12_000);
        for at in 0..2 {
            let device = nvml.device_by_index(at).unwrap();
            assert_eq!(device.name().unwrap(), "NVIDIA H100 80GB HBM3");
            assert_eq!(device.cuda_compute_capability().unwrap().major, 9);
            assert!(device.temperature(TemperatureSensor::Gpu).unwrap() > 0);
            assert!(device.clock_info(Clock::Graphics).unwrap() > 0);
            assert!(device.clock_info(Clock::Memory).unwrap() > 0);
            assert!(device.current_pcie_link_gen().unwrap() > 0);
            assert!(device.current_pcie_link_width().unwrap() > 0);
            assert!(device.architecture().is_ok() && device.pci_info().is_ok());
            let memory = device.memory_info().unwrap();
            assert_eq!((memory.total, memory.used), (81_559 * MIB, 0));
        }
    });
}

#[test]
fn a_process_is_seen_with_its_memory_and_its_work() {
    let test = "a_process_is_seen_with_its_memory_and_its_work";
    asks(test, &["--gpu", "H100"], |place, nvml| {
        let device = first(nvml);
        let mut puppet = place.ready();
        assert_eq!(used(nvml), RESIDUE);
        puppet.does("alloc 0 1073741824");
        assert_eq!(used(nvml), RESIDUE + 1024 * MIB);
        let pid = puppet.pid();
        let seen = || {
            let all = device.running_compute_processes().unwrap();
            all.into_iter().find(|process| process.pid == pid)
        };
        let UsedGpuMemory::Used(bytes) = seen().unwrap().used_gpu_memory else {
            panic!("{:?}", seen());
        };
        assert_eq!(bytes, RESIDUE + 1024 * MIB);
        assert!(device.mps_running_compute_processes().unwrap().is_empty());

        puppet.does("spin 0 30000000000 132 1");
        until("the device is seen to be busy", || {
            device.utilization_rates().unwrap().gpu == 100
        });
        until("the process is seen to be", || {
            let stats = device.process_utilization_stats(None);
            stats.is_ok_and(|all| all.iter().any(|one| one.pid == pid && one.sm_util > 90))
        });
        puppet.kill();
        until("its memory is free", || used(nvml) == 0);
        assert!(seen().is_none());
        until("the device is seen to be idle", || {
            device.utilization_rates().unwrap().gpu == 0
        });
    });
}

#[test]
fn clients_of_mps_are_told_apart() {
    let test = "clients_of_mps_are_told_apart";
    asks(test, &["--gpu", "H100"], |place, nvml| {
        let alone = place.ready();
        place.mps(&[]);
        let clients = [place.ready(), place.ready()];
        let device = first(nvml);
        let pids = |all: Vec<nvml_wrapper::struct_wrappers::device::ProcessInfo>| {
            let mut pids: Vec<_> = all.iter().map(|process| process.pid).collect();
            pids.sort_unstable();
            pids
        };
        let mut all = clients.each_ref().map(|client| client.pid()).to_vec();
        all.sort_unstable();
        assert_eq!(pids(device.mps_running_compute_processes().unwrap()), all);
        all.push(alone.pid());
        all.sort_unstable();
        assert_eq!(pids(device.running_compute_processes().unwrap()), all);
    });
}

#[test]
fn slices_have_names_and_memory_of_their_own() {
    let test = "slices_have_names_and_memory_of_their_own";
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "[[gpu]]\nslices = [\"3g.40gb\", \"4g.40gb\"]\n";
    std::fs::write(&file, text).unwrap();
    let path = file.path().to_str().unwrap();
    asks(test, &["--mig", path], |place, nvml| {
        let gpu = first(nvml);
        assert_eq!(nvml.device_count().unwrap(), 1);
        assert_eq!(gpu.mig_mode().unwrap().current, 1);
        assert_eq!(gpu.mig_device_count().unwrap(), 7);
        let slices: Vec<_> = place
            .identity()
            .units
            .iter()
            .map(|unit| format!("MIG-{}", uuid_text(&unit.uuid)))
            .collect();
        let mut puppet = place.ready_with(&[("CUDA_VISIBLE_DEVICES", &slices[1])]);
        puppet.does("alloc 0 1073741824");
        for (slice, used) in slices.iter().zip([0, RESIDUE + 1024 * MIB]) {
            let device = nvml.device_by_uuid(slice.as_str()).unwrap();
            assert!(device.mig_is_mig_device_handle().unwrap());
            assert_eq!(device.uuid().unwrap(), *slice);
            let memory = device.memory_info().unwrap();
            assert_eq!((memory.total, memory.used), (40_448 * MIB, used));
        }
        let all = gpu.running_compute_processes().unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].pid, puppet.pid());
        assert!(all[0].gpu_instance_id.is_some());
    });
}

#[test]
fn an_error_of_the_gpu_is_told_and_a_lost_one_is_lost() {
    let test = "an_error_of_the_gpu_is_told_and_a_lost_one_is_lost";
    asks(test, &["--gpu", "H100"], |place, nvml| {
        let device = first(nvml);
        let mut puppet = place.ready();
        puppet.does("alloc 0 4096");
        let set = nvml.create_event_set().unwrap();
        let kinds = EventTypes::CRITICAL_XID_ERROR;
        let set = device.register_events(kinds, set).unwrap();
        place.inject("31");
        let event = set.wait(30_000).unwrap();
        assert_eq!(event.event_type, kinds);
        assert!(
            format!("{:?}", event.event_data).contains("31"),
            "{event:?}"
        );
        // That one is told, and no more.
        puppet.does("free 0");

        puppet.does("spin 0 30000000000 132 1");
        puppet.tell("sync 0");
        place.inject("79");
        let event = set.wait(30_000).unwrap();
        assert!(
            format!("{:?}", event.event_data).contains("79"),
            "{event:?}"
        );
        assert!(matches!(device.memory_info(), Err(NvmlError::GpuLost)));
        assert!(matches!(device.name(), Err(NvmlError::GpuLost)));
        assert_eq!(puppet.answer().result, DEVICE_UNAVAILABLE);
        assert_eq!(puppet.result("alloc 0 4096"), DEVICE_UNAVAILABLE);
        assert_eq!(place.puppet().result("open"), DEVICE_UNAVAILABLE);
    });
}

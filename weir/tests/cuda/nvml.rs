//! NVML's reports while programs run, read through the crate `nvml-wrapper`.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use softgpu_wire::identity::uuid_text;
use softgpu_wire::softgpu_dir::VARIABLE;

use softgpu_harness::soft_gpu_dir::SoftGpuDir;
use testing::until;

const MIB: u64 = 1 << 20;
/// Memory that a context of an H100 uses itself, in bytes.
const RESIDUE: u64 = 400 * MIB;
const DEVICE_UNAVAILABLE: u32 = 46;

/// Variable set in the child process of a test.
const CHILD: &str = "WEIR_TEST_ASKS";

/// Runs a test's body in a child process, since the library finds its folder through the environment.
fn in_child(test: &str, arguments: &[&str], body: impl FnOnce(&SoftGpuDir, &Nvml)) {
    if std::env::var_os(CHILD).is_some() {
        let folder = PathBuf::from(std::env::var_os(VARIABLE).unwrap());
        let softgpu = SoftGpuDir::at(folder, arguments);
        let library = softgpu.folder().join("libnvidia-ml.so.1");
        let nvml = Nvml::builder()
            .lib_path(library.as_os_str())
            .init()
            .unwrap();
        body(&softgpu, &nvml);
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
        .env(CHILD, OsStr::new("1"))
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
fn reports_what_the_wrappers_example_prints() {
    let test = "reports_what_the_wrappers_example_prints";
    in_child(test, &["--gpu", "H100", "--gpus", "2"], |_, nvml| {
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
fn reports_a_process_with_its_memory_and_utilization() {
    let test = "reports_a_process_with_its_memory_and_utilization";
    in_child(test, &["--gpu", "H100"], |softgpu, nvml| {
        let device = first(nvml);
        let mut puppet = softgpu.ready();
        assert_eq!(used(nvml), RESIDUE);
        puppet.run("alloc 0 1073741824");
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

        puppet.run("spin 0 30000000000 132 1");
        until("the device is reported busy", || {
            device.utilization_rates().unwrap().gpu == 100
        });
        until("the process is reported busy", || {
            let stats = device.process_utilization_stats(None);
            stats.is_ok_and(|all| all.iter().any(|one| one.pid == pid && one.sm_util > 90))
        });
        puppet.kill();
        until("its memory is free", || used(nvml) == 0);
        assert!(seen().is_none());
        until("the device is reported idle", || {
            device.utilization_rates().unwrap().gpu == 0
        });
    });
}

#[test]
fn distinguishes_mps_clients() {
    let test = "distinguishes_mps_clients";
    in_child(test, &["--gpu", "H100"], |softgpu, nvml| {
        let alone = softgpu.ready();
        softgpu.mps(&[]);
        let clients = [softgpu.ready(), softgpu.ready()];
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
    in_child(test, &["--mig", path], |softgpu, nvml| {
        let gpu = first(nvml);
        assert_eq!(nvml.device_count().unwrap(), 1);
        assert_eq!(gpu.mig_mode().unwrap().current, 1);
        assert_eq!(gpu.mig_device_count().unwrap(), 7);
        let slices: Vec<_> = softgpu
            .identity()
            .units
            .iter()
            .map(|unit| format!("MIG-{}", uuid_text(&unit.uuid)))
            .collect();
        let mut puppet = softgpu.ready_with(&[("CUDA_VISIBLE_DEVICES", &slices[1])]);
        puppet.run("alloc 0 1073741824");
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
fn reports_xid_events_and_lost_gpus() {
    let test = "reports_xid_events_and_lost_gpus";
    in_child(test, &["--gpu", "H100"], |softgpu, nvml| {
        let device = first(nvml);
        let mut puppet = softgpu.ready();
        puppet.run("alloc 0 4096");
        let set = nvml.create_event_set().unwrap();
        let kinds = EventTypes::CRITICAL_XID_ERROR;
        let set = device.register_events(kinds, set).unwrap();
        softgpu.inject("31");
        let event = set.wait(30_000).unwrap();
        assert_eq!(event.event_type, kinds);
        assert!(
            format!("{:?}", event.event_data).contains("31"),
            "{event:?}"
        );
        // That event is reported, and no other.
        puppet.run("free 0");

        puppet.run("spin 0 30000000000 132 1");
        puppet.send("sync 0");
        softgpu.inject("79");
        let event = set.wait(30_000).unwrap();
        assert!(
            format!("{:?}", event.event_data).contains("79"),
            "{event:?}"
        );
        assert!(matches!(device.memory_info(), Err(NvmlError::GpuLost)));
        assert!(matches!(device.name(), Err(NvmlError::GpuLost)));
        assert_eq!(puppet.answer().result, DEVICE_UNAVAILABLE);
        assert_eq!(puppet.result("alloc 0 4096"), DEVICE_UNAVAILABLE);
        assert_eq!(softgpu.puppet().result("open"), DEVICE_UNAVAILABLE);
    });
}

//! Every program of `tests/cuda`.

use softgpu_wire::identity::uuid_text;

use softgpu_harness::programs::{self, linked};
use softgpu_harness::soft_gpu_dir::SoftGpuDir;

/// Runs a program with each way of loading the driver's functions.
fn runs(name: &str, arguments: &[&str]) {
    let softgpu = SoftGpuDir::h100();
    for loader in ["dlsym", "resolver"] {
        let mut program = softgpu.program(name);
        program.args(arguments).env("CUDA_TEST_LOADER", loader);
        softgpu.succeeds(&mut program);
    }
}

#[test]
fn vector_add() {
    runs("vector_add", &[]);
}

#[test]
fn streams_events() {
    // The events around a kernel of 20 ms may deviate by this many ns: the program may be descheduled between two calls. The
    // tests in `time` check their precision.
    runs("streams_events", &["15000000"]);
}

#[test]
fn the_per_thread_stream() {
    let softgpu = SoftGpuDir::h100();
    for loader in ["dlsym-per-thread", "resolver-per-thread"] {
        for name in ["vector_add", "graphs"] {
            let mut program = softgpu.program(name);
            softgpu.succeeds(program.env("CUDA_TEST_LOADER", loader));
        }
    }
}

#[test]
fn vmm() {
    runs("vmm", &[]);
}

#[test]
fn ipc() {
    runs("ipc", &[]);
}

#[test]
fn graphs() {
    runs("graphs", &[]);
}

#[test]
fn memory() {
    runs("memory", &[]);
}

#[test]
fn checkpoint() {
    let softgpu = SoftGpuDir::h100();
    let printed = softgpu.succeeds(&mut softgpu.program("checkpoint"));
    assert!(!printed.contains("not supported"), "{printed}");
    let mut program = softgpu.program("checkpoint");
    softgpu.succeeds(program.env("CUDA_TEST_LOADER", "resolver"));
}

#[test]
fn startup() {
    let softgpu = SoftGpuDir::h100();
    softgpu.succeeds(&mut softgpu.program("startup"));
}

#[test]
fn faults() {
    for arguments in [
        &["illegal"][..],
        &["wait", "--kernels", "20", "--us", "1000"],
        &["alloc", "--mib", "64"],
        &["alloc", "--mib", "64", "--kind", "1"],
        &["alloc", "--mib", "64", "--kind", "2"],
    ] {
        runs("faults", arguments);
    }
}

#[test]
fn rate() {
    runs("rate", &["--rate", "2000", "--seconds", "1"]);
}

#[test]
fn overhead() {
    runs("overhead", &["--launches", "5000", "--kernels", "200"]);
}

#[test]
fn linked_programs_find_everything_beside_the_library() {
    let softgpu = SoftGpuDir::h100();
    for name in ["linked_add", "linked_streams"] {
        let program = linked(name, softgpu.folder());
        let mut command = softgpu.command(&program);
        // The software GPU is identified by the library's folder alone.
        command.arg(programs::ptx()).env_remove("WEIR_SOFTGPU");
        softgpu.succeeds(&mut command);
    }
}

#[test]
fn every_part() {
    for (part, sms) in [("V100", 80), ("A100", 108), ("H200", 132)] {
        let softgpu = SoftGpuDir::new(&["--gpu", part]);
        softgpu.succeeds(&mut softgpu.program("vector_add"));
        let device = softgpu.ready().run("device 0");
        assert_eq!(device.number(0), sms, "{part}");
    }
}

#[test]
fn a_program_sees_one_slice_of_a_sliced_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slices");
    let text = "[[gpu]]\nslices = [\"3g.40gb\", \"4g.40gb\"]\n";
    std::fs::write(&file, text).unwrap();
    let softgpu = SoftGpuDir::new(&["--mig", file.to_str().unwrap()]);
    let identity = softgpu.identity();
    let [four, three] = &identity.units[..] else {
        panic!("{identity:?}");
    };
    for (visible, seen) in [(None, four), (Some(four), four), (Some(three), three)] {
        let mut puppet = match visible {
            None => softgpu.ready(),
            Some(slice) => {
                let uuid = format!("MIG-{}", uuid_text(&slice.uuid));
                softgpu.ready_with(&[("CUDA_VISIBLE_DEVICES", &uuid)])
            }
        };
        assert_eq!(puppet.run("devices").number(0), 1);
        let device = puppet.run("device 0");
        assert_eq!(device.number(0), u64::from(seen.sms));
        assert_eq!(device.number(1), seen.memory);
        assert_eq!(device.words[2], uuid_text(&seen.uuid).replace('-', ""));
        assert!(device.words.join(" ").contains("MIG "), "{device:?}");
    }
    // Concurrent kernels on both slices: each has its own SMs.
    let mut both = [four, three].map(|slice| {
        let uuid = format!("MIG-{}", uuid_text(&slice.uuid));
        softgpu.ready_with(&[("CUDA_VISIBLE_DEVICES", &uuid)])
    });
    for puppet in &mut both {
        puppet.send("spin 0 50000000 132 1");
    }
    for puppet in &mut both {
        puppet.answer();
        puppet.run("sync 0");
    }
    let ledger = softgpu.ledger();
    let [first, second] = both.each_ref().map(|puppet| ledger.of(puppet.pid()));
    assert_eq!((first.most(), second.most()), (64_000, 60_000));
    for name in ["vector_add", "memory", "graphs"] {
        softgpu.succeeds(&mut softgpu.program(name));
    }
}

#[test]
fn two_gpus_reach_each_others_memory() {
    let softgpu = SoftGpuDir::new(&["--gpu", "H100", "--gpus", "2"]);
    assert_eq!(softgpu.ready().run("devices").number(0), 2);
    let printed = softgpu.succeeds(&mut softgpu.program("memory"));
    assert!(printed.contains("can access"), "{printed}");
    let mut second = softgpu.ready_with(&[("CUDA_VISIBLE_DEVICES", "1")]);
    assert_eq!(second.run("devices").number(0), 1);
}

//! Every program of `tests/cuda`.

use softgpu_wire::identity::uuid_text;

use crate::build::{self, linked};
use crate::place::Place;

/// Runs a program with each way to get the functions.
fn runs(name: &str, arguments: &[&str]) {
    let place = Place::h100();
    for loader in ["dlsym", "resolver"] {
        let mut program = place.program(name);
        program.args(arguments).env("CUDA_TEST_LOADER", loader);
        place.succeeds(&mut program);
    }
}

#[test]
fn vector_add() {
    runs("vector_add", &[]);
}

#[test]
fn streams_events() {
    // By so many ns may the events around a kernel of 20 ms be off: the program may be held up between two calls. How exact
    // they are is seen in `time`.
    runs("streams_events", &["15000000"]);
}

#[test]
fn the_per_thread_stream() {
    let place = Place::h100();
    for loader in ["dlsym-per-thread", "resolver-per-thread"] {
        for name in ["vector_add", "graphs"] {
            let mut program = place.program(name);
            place.succeeds(program.env("CUDA_TEST_LOADER", loader));
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
    let place = Place::h100();
    let said = place.succeeds(&mut place.program("checkpoint"));
    assert!(!said.contains("not supported"), "{said}");
    let mut program = place.program("checkpoint");
    place.succeeds(program.env("CUDA_TEST_LOADER", "resolver"));
}

#[test]
fn startup() {
    let place = Place::h100();
    place.succeeds(&mut place.program("startup"));
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
fn linked_programs_find_all_beside_the_library() {
    let place = Place::h100();
    for name in ["linked_add", "linked_streams"] {
        let program = linked(name, place.folder());
        let mut command = place.command(&program);
        // Only the library's own folder says which software GPU it is.
        command.arg(build::ptx()).env_remove("WEIR_SOFTGPU");
        place.succeeds(&mut command);
    }
}

#[test]
fn every_part() {
    for (part, sms) in [("V100", 80), ("A100", 108), ("H200", 132)] {
        let place = Place::new(&["--gpu", part]);
        place.succeeds(&mut place.program("vector_add"));
        let device = place.ready().does("device 0");
        assert_eq!(device.number(0), sms, "{part}");
    }
}

#[test]
fn a_sliced_gpu_is_seen_a_slice_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slices");
    let text = "[[gpu]]\nslices = [\"3g.40gb\", \"4g.40gb\"]\n";
    std::fs::write(&file, text).unwrap();
    let place = Place::new(&["--mig", file.to_str().unwrap()]);
    let identity = place.identity();
    let [four, three] = &identity.units[..] else {
        panic!("{identity:?}");
    };
    for (visible, seen) in [(None, four), (Some(four), four), (Some(three), three)] {
        let mut puppet = match visible {
            None => place.ready(),
            Some(slice) => {
                let uuid = format!("MIG-{}", uuid_text(&slice.uuid));
                place.ready_with(&[("CUDA_VISIBLE_DEVICES", &uuid)])
            }
        };
        assert_eq!(puppet.does("devices").number(0), 1);
        let device = puppet.does("device 0");
        assert_eq!(device.number(0), u64::from(seen.sms));
        assert_eq!(device.number(1), seen.memory);
        assert_eq!(device.words[2], uuid_text(&seen.uuid).replace('-', ""));
        assert!(device.words.join(" ").contains("MIG "), "{device:?}");
    }
    // Kernels of both at once: each has its own SMs.
    let mut both = [four, three].map(|slice| {
        let uuid = format!("MIG-{}", uuid_text(&slice.uuid));
        place.ready_with(&[("CUDA_VISIBLE_DEVICES", &uuid)])
    });
    for puppet in &mut both {
        puppet.tell("spin 0 50000000 132 1");
    }
    for puppet in &mut both {
        puppet.answer();
        puppet.does("sync 0");
    }
    let ledger = place.ledger();
    let [first, second] = both.each_ref().map(|puppet| ledger.of(puppet.pid()));
    assert_eq!((first.most(), second.most()), (64_000, 60_000));
    for name in ["vector_add", "memory", "graphs"] {
        place.succeeds(&mut place.program(name));
    }
}

#[test]
fn two_gpus_reach_each_others_memory() {
    let place = Place::new(&["--gpu", "H100", "--gpus", "2"]);
    assert_eq!(place.ready().does("devices").number(0), 2);
    let said = place.succeeds(&mut place.program("memory"));
    assert!(said.contains("can access"), "{said}");
    let mut second = place.ready_with(&[("CUDA_VISIBLE_DEVICES", "1")]);
    assert_eq!(second.does("devices").number(0), 1);
}

//! Models that leave their device and return, as programs and operators see it: programs with the preload library on a software GPU, in pods
//! of an agent.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cost;
mod cycles;
mod faults;
mod pins;
mod shared;
mod streamed;
mod windows;

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use softgpu_harness::node::{Node, SHARED};
use softgpu_harness::programs::{built, ptx};
use softgpu_harness::puppet::Puppet;
use softgpu_harness::soft_gpu_dir::{SoftGpuDir, signal};
use testing::until;

/// Granule of the device: 2 MiB divided by 64.
const GRANULE: u64 = 32 << 10;

/// Starts an agent on one H100 whose sizes are divided by 64. `config`: further lines, after those of `[node]`.
fn node(config: &str) -> Node {
    let softgpu = SoftGpuDir::new(&["--gpu", "H100", "--bytes", "64"]);
    let node = Node::new(softgpu, config);
    node.pod("pod", SHARED, "");
    node
}

/// Starts a program in the pod, with the device opened and Weir's kernels loaded.
fn program(node: &Node) -> Puppet {
    program_in(node, "pod")
}

fn program_in(node: &Node, pod: &str) -> Puppet {
    let mut command = Command::new(built("puppet"));
    node.softgpu.is_for(&mut command);
    command.arg(ptx());
    node.put(&mut command, pod);
    let mut puppet = Puppet::start(&mut command);
    puppet.run("open");
    puppet.run("load");
    puppet
}

/// Allocations of every kind of size, in bytes: pieces of slabs, single granules, several, and several handles.
const SIZES: [u64; 8] = [
    4,
    700,
    GRANULE / 2 - 4,
    GRANULE / 2,
    GRANULE,
    5 * GRANULE + 12,
    300 * GRANULE,
    700 * GRANULE + 4,
];

/// Allocates memory of all sizes and fills it; returns the sum of each.
fn filled(puppet: &mut Puppet) -> Vec<u64> {
    for (slot, bytes) in SIZES.into_iter().enumerate() {
        puppet.run(&format!("alloc {slot} {bytes}"));
        let words = bytes / 4;
        puppet.run(&format!("fill 0 {slot} {words} {}", 1_000_003 * (slot + 1)));
    }
    sums(puppet)
}

fn sums(puppet: &mut Puppet) -> Vec<u64> {
    let sizes = SIZES.into_iter().enumerate();
    sizes
        .map(|(slot, bytes)| puppet.run(&format!("sum {slot} {}", bytes / 4)).number(0))
        .collect()
}

fn process(node: &Node) -> Value {
    node.instance("pod")["processes"][0].clone()
}

/// Waits until the agent has given the process host memory for all that may move.
fn ready(node: &Node) {
    until("the process has host memory", || {
        process(node)["host_bytes"].as_u64() >= Some(SIZES.iter().sum())
    });
}

fn order(node: &Node, verb: &str) -> (u16, Value) {
    node.post(&format!("/v1/instances/pod:{verb}?wait=true"), "")
}

/// Evicts the model. The host memory, or the end of a restore, may be on its way, or the process may be about to connect again: orders before are
/// refused.
fn evict(node: &Node) -> Value {
    let mut answer = (0, Value::Null);
    until("the model is evicted", || {
        answer = order(node, "evict");
        let reason = &answer.1["reason"];
        reason != "no-memory" && reason != "no-process" && reason != "draining"
    });
    assert_eq!(answer.0, 200, "{}", answer.1);
    assert_eq!(answer.1["state"], "host");
    answer.1
}

/// Returns the device memory in use, in bytes, as the driver reports it.
fn on_device(observer: &mut Puppet) -> u64 {
    let info = observer.run("info");
    info.number(1) - info.number(0)
}

#[test]
fn a_model_leaves_the_device_and_returns_byte_for_byte() {
    let node = node("[memory]\nseal-after = \"0\"\n");
    let mut observer = node.softgpu.ready();
    let empty = on_device(&mut observer);
    let mut puppet = program(&node);
    let residue = on_device(&mut observer) - empty;
    let before = filled(&mut puppet);
    ready(&node);
    let moved = evict(&node);
    let bytes = moved["bytes"].as_u64().unwrap();
    assert!(bytes >= SIZES.iter().sum(), "{moved}");
    assert_eq!(moved["bytes"], moved["copied_bytes"]);
    assert_eq!(on_device(&mut observer), empty + residue);
    assert_eq!(process(&node)["residency"], "host");
    // A thread that uses the memory brings it back.
    assert_eq!(sums(&mut puppet), before);
    until("the model is back", || {
        process(&node)["residency"] == "resident"
    });
    assert_eq!(on_device(&mut observer), empty + residue + bytes);
    // Nothing has changed, so nothing is copied.
    let again = evict(&node);
    assert_eq!(
        (&again["bytes"], &again["copied_bytes"]),
        (&moved["bytes"], &0.into())
    );
    let (status, back) = order(&node, "restore");
    assert_eq!((status, &back["state"]), (200, &"resident".into()));
    assert_eq!(back["copied_bytes"], moved["bytes"]);
    // One word of the largest allocation.
    puppet.run("poke 7 4096 77");
    let changed = evict(&node);
    assert_eq!(changed["copied_bytes"], GRANULE);
    assert_ne!(sums(&mut puppet), before);
    let info = node.instance("pod");
    assert_eq!(info["moves"]["evictions"], 3);
    assert_eq!(info["moves"]["restores"], 3);
}

#[test]
fn a_quiet_process_copies_ahead_so_that_even_its_first_eviction_copies_nothing() {
    let node = node("[memory]\nseal-after = \"100ms\"\n");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    let sealed = || {
        until("the model is sealed", || {
            process(&node)["is_sealed"] == true
        });
    };
    sealed();
    let moved = evict(&node);
    assert_eq!(moved["copied_bytes"], 0, "{moved}");
    assert!(moved["bytes"].as_u64() >= Some(SIZES.iter().sum()));
    assert_eq!(sums(&mut puppet), before);
    sealed();
    puppet.run("poke 7 4096 77");
    // What has changed is copied ahead too: some eviction finds it so, whenever the process was quiet for long enough before.
    until("a changed model leaves without a copy", || {
        sealed();
        let moved = evict(&node);
        let changed = sums(&mut puppet);
        assert_ne!(changed, before);
        moved["copied_bytes"] == 0
    });
    assert_ne!(sums(&mut puppet), before);
}

#[test]
fn a_program_that_computes_amid_its_restores_reads_what_it_wrote() {
    let node = node("[memory]\nstream-restores = true\n");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    for round in 0..10 {
        evict(&node);
        if round % 2 == 0 {
            assert_eq!(order(&node, "restore").0, 200);
        }
        // Written while it returns, by a kernel and from the host; read in the other order.
        puppet.run("fill 0 2 100 9");
        puppet.run("poke 7 4096 77");
        let mut sums = before.clone();
        for slot in (0..SIZES.len()).rev() {
            let words = SIZES[slot] / 4;
            sums[slot] = puppet.run(&format!("sum {slot} {words}")).number(0);
        }
        for (slot, (sum, expected)) in sums.iter().zip(&before).enumerate() {
            assert_eq!(
                sum == expected,
                slot != 2 && slot != 7,
                "round {round}, slot {slot}"
            );
        }
        puppet.run(&format!("fill 0 2 {} {}", SIZES[2] / 4, 1_000_003 * 3));
        puppet.run(&format!("fill 0 7 {} {}", SIZES[7] / 4, 1_000_003 * 8));
    }
}

#[test]
fn orders_are_answered_with_what_was_done_or_why_not() {
    let node = node("[memory]\nrestore = \"order\"\n");
    assert_eq!(order(&node, "evict").1["reason"], "no-process");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    let (status, accepted) = node.post("/v1/instances/pod:evict", r#"{"drain_ms":500}"#);
    assert_eq!((status, &accepted["seq"]), (202, &1.into()), "{accepted}");
    until("the model is away", || {
        process(&node)["residency"] == "host"
    });
    let (status, again) = order(&node, "evict");
    assert_eq!((status, &again["bytes"]), (200, &0.into()));
    // Nothing but an order brings it back.
    puppet.send("sum 7 1");
    until("the thread waits", || {
        node.instance("pod")["moves"]["demand_waits"].as_u64() > Some(0)
    });
    assert_eq!(process(&node)["residency"], "host");
    assert_eq!(order(&node, "restore").0, 200);
    assert_eq!(puppet.answer().result, 0);
    assert_eq!(sums(&mut puppet), before);
    for (path, body) in [
        ("/v1/instances/pod:evict", "{"),
        ("/v1/instances/pod:evict", r#"{"drain":1}"#),
        ("/v1/instances/pod:evict", r#"{"drain_ms":600001}"#),
        ("/v1/instances/pod:evict?wait=1", ""),
    ] {
        let (status, answer) = node.post(path, body);
        assert_eq!(status, 400, "{path} {body}");
        assert!(answer["allowed"][0].is_string(), "{answer}");
    }
    assert_eq!(node.post("/v1/instances/other:evict", "").0, 404);
    // Work that does not end within the drain.
    puppet.run("spin 0 3000000000 1 1");
    let (status, answer) = node.post("/v1/instances/pod:evict?wait=true", r#"{"drain_ms":50}"#);
    assert_eq!((status, &answer["reason"]), (409, &"draining".into()));
    puppet.run("sync 0");
    evict(&node);
}

#[test]
fn without_room_on_the_host_the_model_stays() {
    let softgpu = SoftGpuDir::new(&["--gpu", "H100", "--bytes", "64"]);
    let node = Node::new(softgpu, "host-memory = \"4Mi\"\n");
    node.pod("pod", SHARED, "");
    node.pod("stays", &format!("{SHARED}weir.dev/evict=\"never\"\n"), "");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    let (status, answer) = order(&node, "evict");
    assert_eq!((status, &answer["reason"]), (409, &"no-memory".into()));
    assert_eq!(sums(&mut puppet), before);
    let (status, answer) = node.post("/v1/instances/stays:evict", "");
    assert_eq!((status, &answer["reason"]), (409, &"never".into()));
}

#[test]
fn a_process_whose_agent_dies_restores_itself() {
    let mut node = node("");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    evict(&node);
    node.kill_agent();
    assert_eq!(sums(&mut puppet), before);
    node.start();
    until("the process is connected", || {
        process(&node)["residency"] == "resident"
    });
    ready(&node);
    evict(&node);
    assert_eq!(sums(&mut puppet), before);
}

#[test]
fn a_killed_process_leaves_no_memory_on_device_or_host() {
    let node = node("");
    let mut observer = node.softgpu.ready();
    let empty = on_device(&mut observer);
    let mut puppet = program(&node);
    filled(&mut puppet);
    ready(&node);
    evict(&node);
    let moving = |node: &Node| node.post("/v1/instances/pod:restore", "");
    assert_eq!(moving(&node).0, 202);
    signal(puppet.pid(), Signal::KILL);
    until("its memory is returned", || {
        on_device(&mut observer) == empty
    });
    until("the agent knows", || {
        node.instance("pod")["processes"] == Value::Array(Vec::new())
    });
    // Its host memory serves the next one.
    let mut next = program(&node);
    let before = filled(&mut next);
    ready(&node);
    evict(&node);
    assert_eq!(sums(&mut next), before);
}

#[test]
fn a_new_process_of_an_evicted_pod_computes_and_leaves_with_the_others() {
    let node = node("");
    let mut first = program(&node);
    let before = filled(&mut first);
    ready(&node);
    evict(&node);
    let mut second = program(&node);
    let of_second = filled(&mut second);
    let places = |node: &Node| {
        let processes = node.instance("pod")["processes"].clone();
        let all = processes.as_array().unwrap().iter();
        let mut places: Vec<_> = all.map(|own| own["residency"].clone()).collect();
        places.sort_by_key(Value::to_string);
        places
    };
    assert_eq!(places(&node)[0], "host");
    assert_ne!(places(&node)[1], "host");
    evict(&node);
    assert_eq!(places(&node), ["host", "host"]);
    assert_eq!(sums(&mut second), of_second);
    assert_eq!(sums(&mut first), before);
}

#[test]
fn an_agent_that_dies_amid_a_move_finds_the_memory_where_it_is() {
    let mut node = node("");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    for round in 0..6 {
        let verb = if round % 2 == 0 { "evict" } else { "restore" };
        let (status, _) = node.post(&format!("/v1/instances/pod:{verb}"), "");
        assert!([200, 202].contains(&status));
        node.kill_agent();
        node.start();
        until("the process is connected", || {
            let place = process(&node)["residency"].clone();
            place == "host" || place == "resident"
        });
        assert_eq!(sums(&mut puppet), before, "round {round}");
    }
}

#[test]
fn a_hung_agent_keeps_no_process_from_its_memory() {
    let node = node("");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    evict(&node);
    signal(node.agent(), Signal::STOP);
    assert_eq!(sums(&mut puppet), before);
    signal(node.agent(), Signal::CONT);
    until("the process is connected", || {
        process(&node)["residency"] == "resident"
    });
    evict(&node);
    assert_eq!(sums(&mut puppet), before);
}

#[test]
fn memory_that_the_program_maps_itself_moves_too() {
    let node = node("");
    let mut observer = node.softgpu.ready();
    let empty = on_device(&mut observer);
    let mut puppet = program(&node);
    let residue = on_device(&mut observer) - empty;
    let bytes = 50 * GRANULE;
    puppet.run(&format!("own 0 {bytes}"));
    puppet.run(&format!("fill 0 0 {} 77", bytes / 4));
    let sum = |puppet: &mut Puppet| puppet.run(&format!("sum 0 {}", bytes / 4)).number(0);
    let before = sum(&mut puppet);
    for _ in 0..3 {
        let moved = evict(&node);
        assert_eq!(moved["bytes"], bytes);
        assert_eq!(on_device(&mut observer), empty + residue);
        assert_eq!(sum(&mut puppet), before);
    }
    // The handle it knows is still good.
    puppet.run("remap 0");
    assert_eq!(sum(&mut puppet), before);
    evict(&node);
    puppet.run("disown 0");
    assert_eq!(on_device(&mut observer), empty + residue);
    assert_eq!(process(&node)["bytes_fixed"], 0);
    assert_eq!(process(&node)["fixed"]["managed"], 0);
    let context = process(&node)["fixed"]["context"].as_u64();
    // It is estimated by what is not free, of which the observer has a part.
    assert!(context >= Some(residue), "{context:?}");
}

#[test]
fn the_command_line_moves_a_model_and_says_what_it_did() {
    let node = node("");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    evict(&node);
    assert_eq!(sums(&mut puppet), before);
    let control = node.control();
    let run = |arguments: &[&str]| {
        let output = node.gpu_sidecar(&[arguments, &["--address", &control]].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, printed, _) = run(&["evict", "pod"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.starts_with("pod: host; "), "{printed}");
    assert!(printed.contains(" 0 MiB of them copied"), "{printed}");
    let (code, printed, _) = run(&["list"]);
    assert_eq!(code, Some(0));
    let row = printed.lines().nth(1).unwrap();
    let words: Vec<_> = row.split_whitespace().collect();
    assert_eq!((words[0], words[2]), ("pod", "host"), "{printed}");
    let (code, printed, _) = run(&["restore", "pod", "--json"]);
    let answer: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, &answer["state"]), (Some(0), &"resident".into()));
    assert_eq!(sums(&mut puppet), before);
    puppet.run("spin 0 2000000000 1 1");
    let (code, _, error) = run(&["evict", "pod", "--drain-ms", "20"]);
    assert_eq!(code, Some(1));
    assert!(error.starts_with("draining: "), "{error}");
    let (code, _, error) = run(&["evict", "other"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("404"), "{error}");
    let (code, _, error) = run(&["evict", "a b"]);
    assert_eq!(code, Some(2), "{error}");
}

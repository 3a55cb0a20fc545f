//! Kills and stops agent, pods and MPS daemon at random while pods compute and one answers requests: invariants 1, 2, 5, 6 and 7
//! of docs/spec/invariants.md hold all the time, and shares recover within [`BACK`].
//!
//! | variable | meaning |
//! |---|---|
//! | `WEIR_FAULTS_SECONDS` | how long, in whole seconds; 20 |
//! | `WEIR_FAULTS_SEED` | repeats the faults of a run that has printed this seed |
//!
//! Ten minutes: `WEIR_FAULTS_SECONDS=600 cargo test --release -p weir --test faults -- --nocapture`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checks;
mod pods;
mod requests;

use std::fs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{Timespec, poll};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use rustix::process::Signal;

use checks::Checks;
use pods::{PODS, Pods};
use requests::Requests;
use softgpu_harness::node::Node;
use softgpu_harness::soft_gpu_dir::{SoftGpuDir, is_gone, signal};
use testing::variables::{number, print_line};
use testing::{Random, until};

/// Time within which shares recover after a fault is repaired.
const BACK: Duration = Duration::from_secs(1);
/// Time over which shares are measured then.
const MEASURED: Duration = Duration::from_millis(1_500);
/// Time without an agent: a hanging agent is noticed after a second.
const ALONE: Duration = Duration::from_millis(1_600);
/// Largest memory of the agent, in KiB, and largest number of its open files.
const AGENT_KIB_MAX: u64 = 128 << 10;
const AGENT_FILES_MAX: usize = 128;

/// Faults of the agent, the pods and the MPS daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    AgentKilled,
    AgentHangs,
    PodKilled(usize),
    PodHangs(usize),
    MpsKilled,
    /// A process outside of all pods sends garbage to each pod's socket.
    Flood,
}

/// Returns a random pod.
fn random_pod(random: &mut Random) -> usize {
    random.index(PODS.len())
}

/// Returns a random duration of a fault, of at least 20 ms and below `max_ms`.
fn moment(random: &mut Random, max_ms: u64) -> Duration {
    Duration::from_millis(20 + random.below(max_ms - 20))
}

/// Returns the next faults: each kind once, in random order.
fn round(random: &mut Random) -> Vec<Fault> {
    let mut faults = vec![
        Fault::AgentKilled,
        Fault::PodKilled(random_pod(random)),
        Fault::MpsKilled,
        Fault::AgentHangs,
        Fault::PodHangs(random_pod(random)),
        Fault::Flood,
    ];
    for at in (1..faults.len()).rev() {
        faults.swap(at, random.index(at + 1));
    }
    faults
}

fn pass(time: Duration) {
    let moment = Timespec::try_from(time).unwrap();
    poll(&mut [], Some(&moment)).unwrap();
}

#[test]
fn random_faults_violate_no_invariant() {
    #[expect(clippy::disallowed_methods, reason = "another seed each time")]
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("WEIR_FAULTS_SEED").unwrap_or_else(|| u64::from(clock.subsec_nanos()));
    let length = Duration::from_secs(number("WEIR_FAULTS_SECONDS").unwrap_or(20));
    print_line(&format!("WEIR_FAULTS_SEED={seed}"));
    let mut random = Random(seed);
    let config = format!(
        "[tokens]\nwindow = \"100ms\"\nhorizon = \"{}ms\"\n",
        checks::HORIZON / 1_000_000
    );
    let softgpu = SoftGpuDir::new(&["--gpu", "H100", "--bytes", "64"]);
    let mut node = Node::new(softgpu, &config);
    let mut pods = Pods::start(&node);
    let requests = Requests::start(pods.address());
    let mut checks = Checks::new();
    pods.repair(&node);
    pass(BACK);
    checks.governed();
    pass(MEASURED);
    checks.shares(&node, &pods, MEASURED);

    let begin = Instant::now();
    let mut count = 0;
    let mut faults = Vec::new();
    while begin.elapsed() < length {
        let fault = faults.pop().unwrap_or_else(|| {
            faults = round(&mut random);
            faults.pop().unwrap()
        });
        print_line(&format!(
            "{:5.1} s: {fault:?}",
            begin.elapsed().as_secs_f64()
        ));
        happen(fault, &mut random, &mut node, &mut pods, &mut checks);
        pods.repair(&node);
        pass(BACK);
        checks.governed();
        pass(MEASURED);
        checks.shares(&node, &pods, MEASURED);
        checks.limits_and_sms(&node, &pods);
        agent_is_well(&node);
        count += 1;
    }
    let answers = requests.end();
    print_line(&format!(
        "{count} faults in {:.0} s; {answers}; agent: {} KiB, {} files",
        begin.elapsed().as_secs_f64(),
        memory(node.agent()),
        files(node.agent())
    ));
}

/// Causes a fault and repairs it as a kubelet does.
fn happen(
    fault: Fault,
    random: &mut Random,
    node: &mut Node,
    pods: &mut Pods,
    checks: &mut Checks,
) {
    match fault {
        Fault::AgentKilled => {
            checks.ungoverned();
            node.kill_agent();
            pass(ALONE);
            pods.live();
            checks.all_computed(node, pods, ALONE / 2);
            // A fault without an agent to observe it.
            match random.below(3) {
                0 => pods.kill(random_pod(random), checks),
                1 => kill_daemon(node, pods, checks),
                _ => {}
            }
            pass(moment(random, 500));
            node.start();
        }
        Fault::AgentHangs => {
            checks.ungoverned();
            let agent = node.agent();
            signal(agent, Signal::STOP);
            pass(ALONE + moment(random, 500));
            pods.live();
            // A process which returns its token, or has none, waits up to a second for the agent's answer.
            checks.all_computed(node, pods, ALONE * 7 / 8);
            signal(agent, Signal::CONT);
            pods.pay(node);
        }
        Fault::PodKilled(pod) => {
            pods.kill(pod, checks);
            pass(moment(random, 300));
        }
        Fault::PodHangs(pod) => {
            let pid = pods.pid(pod);
            signal(pid, Signal::STOP);
            pass(moment(random, 1_500));
            signal(pid, Signal::CONT);
        }
        Fault::MpsKilled => {
            kill_daemon(node, pods, checks);
            pass(moment(random, 300));
        }
        Fault::Flood => {
            for pod in PODS {
                flood(node, pod.name, random);
            }
        }
    }
}

/// Kills the MPS daemon; all of its clients lose the device.
fn kill_daemon(node: &Node, pods: &Pods, checks: &mut Checks) {
    let daemon = daemon(node);
    pods.lose_all(checks);
    signal(daemon, Signal::KILL);
    until("the daemon is dead", || is_gone(daemon));
}

/// Returns the PID of the slot's MPS daemon.
fn daemon(node: &Node) -> u32 {
    let slots = fs::read_dir(node.file("run/mps")).unwrap();
    let files = slots.map(|slot| {
        slot.unwrap()
            .path()
            .join("pipe/nvidia-cuda-mps-control.pid")
    });
    let pids = files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    pids.last().unwrap()
}

/// Sends messages of random lengths until the agent stops receiving them.
fn flood(node: &Node, pod: &str, random: &mut Random) {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let address = SocketAddrUnix::new(node.gate(pod).join("gpu.sock")).unwrap();
    if connect(&socket, &address).is_err() {
        return;
    }
    for _ in 0..1_000 {
        let length = usize::try_from(1 + random.below(4_096)).unwrap();
        let bytes: Vec<u8> = (0..length)
            .map(|_| u8::try_from(random.below(256)).unwrap())
            .collect();
        if send(&socket, &bytes, SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.unwrap().parse().unwrap()
}

fn files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Checks invariant 7: the agent has not panicked, and its memory and open files are bounded.
fn agent_is_well(node: &Node) {
    let log = node.log();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
    let (memory, files) = (memory(node.agent()), files(node.agent()));
    assert!(memory <= AGENT_KIB_MAX, "the agent has {memory} KiB");
    assert!(files <= AGENT_FILES_MAX, "the agent has {files} files");
}

//! Work on a slot that no request has caused: health checks which compute, loads and warm-ups of models, messages on upgraded connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use policy::pool::leases::{PARKED_CREDIT_MAX, PARKED_SHARE};
use softgpu_harness::node::Node;
use softgpu_harness::soft_gpu_dir::SoftGpuDir;
use testing::until;

use super::pods::{About, Pod, exchange_within, infer};
use super::{CONFIG, StopGuard, node, print, restores};

/// The kubelet's defaults: time and number of failures after which a container is started again, and interval of its checks.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const FAILURES: usize = 3;
const PROBE_PERIOD: Duration = Duration::from_secs(1);

/// Returns the number of evictions through which the health check is tried: few in a run of all tests.
fn evictions() -> u64 {
    let variable = std::env::var("WEIR_EVICTIONS");
    variable.map_or(100, |text| text.parse().unwrap())
}

/// Results of one health check a period while its pod's model leaves and returns all the time.
#[derive(Debug, Default)]
struct Checks {
    count: usize,
    failed: usize,
    /// Failures in a row, now and at most.
    row: usize,
    longest_row: usize,
    slowest: Duration,
}

impl Checks {
    fn check(&mut self, address: SocketAddr) {
        let begin = Instant::now();
        let (status, _) = exchange_within(address, PROBE_TIMEOUT, "GET", "/health?gpu=1", "");
        self.count += 1;
        self.slowest = self.slowest.max(begin.elapsed());
        self.row = if status == 200 { 0 } else { self.row + 1 };
        self.failed += usize::from(status != 200);
        self.longest_row = self.longest_row.max(self.row);
    }
}

#[test]
fn a_server_whose_health_check_computes_keeps_its_pod_while_its_model_leaves_all_the_time() {
    let (node, pods) = node();
    let target = pods[0].target;
    let before = restores(&node, &pods);
    let checks = thread::scope(|scope| {
        // Dropped at the end, also of a test that fails.
        let (guard, ends) = mpsc::sync_channel::<()>(0);
        let checking = scope.spawn(move || {
            let mut checks = Checks::default();
            loop {
                let next = Instant::now() + PROBE_PERIOD;
                checks.check(target);
                let left = next.saturating_duration_since(Instant::now());
                if ends.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                    return checks;
                }
            }
        });
        let mut seed = 0;
        while restores(&node, &pods) - before < evictions() {
            for pod in &pods {
                assert_eq!(infer(pod.address(), seed), 200, "request {seed}");
            }
            seed += 1;
        }
        drop(guard);
        checking.join().unwrap()
    });
    let evictions = restores(&node, &pods) - before;
    print(&format!("{evictions} evictions: {checks:?}"));
    assert!(
        checks.count > 1 && checks.longest_row < FAILURES,
        "{checks:?}"
    );
}

/// Requests that are sent at a time to a pod that runs one.
const CLIENTS: u64 = 8;

/// Sends requests to a pod while `action` runs, so many at a time that some wait although their clients are slow on a machine that does much else: without one that
/// waits the slot is free for work in the background. Returns the result, and the number of requests that were answered.
fn while_busy<T>(address: SocketAddr, action: impl FnOnce() -> T) -> (T, usize) {
    let is_over = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    let result = thread::scope(|scope| {
        let guard = StopGuard(&is_over);
        for client in 0..CLIENTS {
            let (is_over, answered) = (&is_over, &answered);
            scope.spawn(move || {
                let mut seed = client * 1_000;
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(infer(address, seed), 200, "request {seed}");
                    answered.fetch_add(1, Ordering::Relaxed);
                    seed += 1;
                }
            });
        }
        until("the slot is busy", || {
            (answered.load(Ordering::Relaxed) > 20).then_some(())
        });
        let result = action();
        drop(guard);
        result
    });
    (result, answered.into_inner())
}

#[test]
fn a_model_is_loaded_and_computes_for_no_request_on_a_slot_that_is_busy_all_the_time() {
    let softgpu = SoftGpuDir::new(&["--gpu", "V100", "--bytes", "64"]);
    let node = Node::new(softgpu, CONFIG);
    let busy = Pod::start(&node, About::of("one", "127.0.11.21"));
    let address = busy.address();
    let ((loaded, worked), answered) = while_busy(address, || {
        let begin = Instant::now();
        let pod = Pod::start(&node, About::of("two", "127.0.11.22"));
        let loaded = begin.elapsed();
        // As for a message on an upgraded connection: past the queue-proxy.
        let begin = Instant::now();
        assert_eq!(infer(pod.target, 7), 200);
        (loaded, begin.elapsed())
    });
    print(&format!(
        "loaded after {loaded:?}, computed within {worked:?}, beside {answered} requests"
    ));
    assert!(loaded < Duration::from_secs(20) && worked < Duration::from_secs(20));
}

/// Kernel time of work in the background, in milliseconds: more than can be saved up.
const WORK_MS: u64 = 1_500;

#[test]
fn work_in_the_background_gets_its_twentieth_of_a_busy_slot_and_no_more() {
    let softgpu = SoftGpuDir::new(&["--gpu", "V100", "--bytes", "64"]);
    // Room for both models, so that they share the time alone.
    let node = Node::new(softgpu, &CONFIG.replacen("5Mi", "12Mi", 1));
    let busy = Pod::start(&node, About::of("one", "127.0.11.25"));
    // With shorter pieces most of a lease is the host's time between them, on a machine that is busy.
    let about = About {
        piece: "20ms",
        ..About::of("two", "127.0.11.26")
    };
    let other = Pod::start(&node, about);
    let kernels = || {
        let of = |name| {
            let ns = node.instance(name)["processes"][0]["busy_ns"].as_u64();
            Duration::from_nanos(ns.expect("a number"))
        };
        (of("one"), of("two"))
    };
    let before = kernels();
    let (took, answered) = while_busy(busy.address(), || {
        let begin = Instant::now();
        let body = format!(r#"{{"input":{WORK_MS},"output":1,"seed":7}}"#);
        let at_most = Duration::from_secs(120);
        let (status, _) = exchange_within(other.target, at_most, "POST", "/infer", &body);
        assert_eq!(status, 200);
        begin.elapsed()
    });
    let after = kernels();
    let (of_busy, of_work) = (after.0 - before.0, after.1 - before.1);
    let work = Duration::from_millis(WORK_MS);
    let share = u32::try_from(PARKED_SHARE).unwrap();
    // What has been saved up is used first: a slot has the most from the start.
    let saved = Duration::from_nanos(PARKED_CREDIT_MAX.0);
    let shortest = (work - saved) * share;
    print(&format!(
        "{work:?} of kernels took {took:?}, at least {shortest:?} by their share, beside {answered} requests with {of_busy:?} of kernels"
    ));
    // Its kernels are not all of its leases: gates open and close, and the host works between them. Both pods wait for a machine that is busy.
    assert!(
        of_busy < of_work * share * 2,
        "{of_work:?} beside {of_busy:?}"
    );
    // After each recall a queue-proxy states what waits, later on a machine that is busy; until then the slot is free for it.
    assert!(took > shortest / 3, "{took:?}, not {shortest:?}");
}

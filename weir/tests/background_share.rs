//! The share of an exclusive slot's time that work gets which no request has caused, while requests keep the slot busy: alone in this program, since it measures time
//! in which two pods compete, and other tests beside it would delay one of them.

use std::time::{Duration, Instant};

use policy::pool::leases::{PARKED_CREDIT_MAX, PARKED_SHARE};
use softgpu_harness::node::Node;
use softgpu_harness::pods::{About, Pod, exchange_within, while_busy};
use softgpu_harness::soft_gpu_dir::SoftGpuDir;

/// Room for both models, so that they share the time alone.
const CONFIG: &str = "[slots]\nkind = \"exclusive\"\nmemory = \"12Mi\"\n\
                      [slots.context-residue]\nexclusive = \"5Mi\"\n";

#[expect(clippy::print_stdout, reason = "figures, with --nocapture")]
fn print(line: &str) {
    println!("{line}");
}

/// Kernel time of work in the background, in milliseconds: more than can be saved up.
const WORK_MS: u64 = 1_500;

#[test]
fn work_in_the_background_gets_its_twentieth_of_a_busy_slot_and_no_more() {
    let softgpu = SoftGpuDir::new(&["--gpu", "V100", "--bytes", "64"]);
    let node = Node::new(softgpu, CONFIG);
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

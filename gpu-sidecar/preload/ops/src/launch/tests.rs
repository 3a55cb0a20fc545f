use std::cell::Cell;

use preload_state::gate::SHORT_GAP;

use super::*;
use crate::cuda::{INVALID_VALUE, PER_THREAD};
use crate::fake::{CONTEXT, Fake, KERNEL, STREAM, counted};

const US: u64 = 1_000;

/// Launches a kernel of this length in the stream.
fn launch_for(fake: &'static Fake, ns: u64) -> Outcome {
    let call = || {
        fake.run(STREAM, ns);
        SUCCESS
    };
    launch(
        fake,
        &call,
        STREAM,
        DefaultStream::Legacy,
        KERNEL,
        Kind::Kernel,
    )
}

/// Launches kernels of this length until the function is measured, and waits for each.
fn learn(fake: &'static Fake, ns: u64) {
    for _ in 0..3 {
        assert_eq!(launch_for(fake, ns), Outcome::Done(SUCCESS));
        fake.pass(ns);
        streams::stream_synchronized(fake, STREAM, DefaultStream::Legacy);
    }
}

fn in_flight(fake: &'static Fake) -> u64 {
    fake.process.gate.word().in_flight()
}

#[test]
fn an_inactive_process_launches_unmeasured() {
    let fake = Fake::new();
    fake.process.set_active(false);
    assert_eq!(launch_for(fake, US), Outcome::Pass(Reason::Inactive));
    assert_eq!(in_flight(fake), 0);
    assert!(fake.events.borrow().is_empty());
}

#[test]
fn an_open_gate_lets_a_launch_pass_and_counts_it() {
    let fake = Fake::new();
    assert_eq!(launch_for(fake, 10 * US), Outcome::Done(SUCCESS));
    assert_eq!(fake.facts.launches.0.load(Ordering::Relaxed), 1);
    assert_eq!(in_flight(fake), functions::UNKNOWN_NS);
    assert_eq!(fake.facts.unmeasured.load(Ordering::Relaxed), 1);
    assert!(!fake.process.threads.any_launching());
    assert!(fake.waits.borrow().is_empty());
}

#[test]
fn a_launch_is_marked_while_the_driver_runs_it() {
    let fake = Fake::new();
    let seen = Cell::new(false);
    let call = || {
        seen.set(fake.process.threads.any_launching() && fake.is_inside());
        SUCCESS
    };
    let outcome = launch(
        fake,
        &call,
        STREAM,
        DefaultStream::Legacy,
        KERNEL,
        Kind::Kernel,
    );
    assert_eq!(outcome, Outcome::Done(SUCCESS));
    assert!(seen.get() && !fake.is_inside());
}

#[test]
fn a_launch_inside_a_launch_passes_unmeasured() {
    let fake = Fake::new();
    let inner = Cell::new(None);
    let call = || {
        inner.set(Some(launch_for(fake, US)));
        SUCCESS
    };
    let _outer = launch(
        fake,
        &call,
        STREAM,
        DefaultStream::Legacy,
        KERNEL,
        Kind::Kernel,
    );
    assert_eq!(inner.get(), Some(Outcome::Pass(Reason::Nested)));
    assert_eq!(fake.facts.launches.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_launch_in_a_capture_is_neither_gated_nor_measured() {
    let fake = Fake::new();
    fake.orders.gate.set(3);
    fake.process.captures.begin();
    fake.capturing.borrow_mut().insert(STREAM);
    assert_eq!(launch_for(fake, US), Outcome::Pass(Reason::Capturing));
    assert_eq!(in_flight(fake), 0);
}

#[test]
fn a_launch_in_another_stream_than_the_captured_one_is_measured() {
    let fake = Fake::new();
    fake.process.captures.begin();
    fake.capturing.borrow_mut().insert(STREAM + 16);
    assert_eq!(launch_for(fake, US), Outcome::Done(SUCCESS));
    fake.pass(US);
    streams::reap_all(fake);
    assert_eq!(in_flight(fake), 0);
    assert_eq!(fake.invalidated.get(), 0);
}

#[test]
fn a_launch_that_the_driver_refuses_is_not_in_flight() {
    let fake = Fake::new();
    let call = || INVALID_VALUE;
    let outcome = launch(
        fake,
        &call,
        STREAM,
        DefaultStream::Legacy,
        KERNEL,
        Kind::Kernel,
    );
    assert_eq!(outcome, Outcome::Done(INVALID_VALUE));
    assert_eq!(in_flight(fake), 0);
    assert_eq!(fake.facts.unmeasured.load(Ordering::Relaxed), 0);
}

#[test]
fn a_collective_is_refused_and_reported_once() {
    let fake = Fake::new();
    let name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
    fake.names.borrow_mut().insert(KERNEL, name);
    for _ in 0..2 {
        assert_eq!(launch_for(fake, US), Outcome::Fail(NOT_PERMITTED));
    }
    let report = FromProcess::Report(Report::Collective(name.to_owned()));
    assert_eq!(fake.take_sent(), [report]);
    assert_eq!(fake.lines.borrow().len(), 1);
    assert!(fake.lines.borrow()[0].starts_with(name));
}

#[test]
fn a_graph_with_the_handle_of_a_collective_is_none() {
    let fake = Fake::new();
    fake.names
        .borrow_mut()
        .insert(KERNEL, "ncclKernel_AllGather");
    let calls = Cell::new(0);
    let call = counted(&calls);
    let outcome = launch(
        fake,
        &call,
        STREAM,
        DefaultStream::Legacy,
        KERNEL,
        Kind::Graph,
    );
    assert_eq!((outcome, calls.get()), (Outcome::Done(SUCCESS), 1));
}

#[test]
fn a_closed_gate_is_asked_for_and_waited_for() {
    let fake = Fake::new();
    fake.orders.gate.set(3);
    fake.at_wait(|fake| {
        assert_eq!(fake.facts.parked.load(Ordering::Relaxed), 1);
        assert!(!fake.process.threads.any_launching());
        // Announced before the gate was read, and withdrawn since.
        assert_eq!(in_flight(fake), 0);
        assert_eq!(fake.facts.inflight_us.load(Ordering::Relaxed), 0);
        assert_eq!(fake.facts.unmeasured.load(Ordering::Relaxed), 0);
    });
    fake.at_wait(|fake| fake.orders.gate.set(4));
    assert_eq!(launch_for(fake, US), Outcome::Done(SUCCESS));
    assert_eq!(fake.take_sent(), [FromProcess::Ask { epoch: 3 }]);
    assert_eq!(*fake.waits.borrow(), [RECHECK_INTERVAL; 2]);
    assert_eq!(fake.facts.parked.load(Ordering::Relaxed), 0);
}

#[test]
fn without_an_agent_nothing_is_asked_for() {
    let fake = Fake::new();
    fake.orders.gate.set(3);
    fake.default_orders.set(true);
    fake.at_wait(|fake| fake.orders.gate.set(4));
    assert_eq!(launch_for(fake, US), Outcome::Done(SUCCESS));
    assert!(fake.take_sent().is_empty());
}

#[test]
fn an_agent_without_a_heartbeat_is_given_up_after_a_second() {
    let fake = Fake::new();
    fake.orders.gate.set(3);
    for _ in 0..20 {
        fake.at_wait(|fake| assert_eq!(fake.abandoned.get(), 0));
    }
    fake.at_wait(|_| {});
    fake.at_wait(|fake| fake.orders.gate.set(4));
    assert_eq!(launch_for(fake, US), Outcome::Done(SUCCESS));
    assert_eq!(fake.abandoned.get(), 1);
}

#[test]
fn a_launch_waits_until_work_in_flight_is_below_the_bound() {
    let fake = Fake::new();
    learn(fake, 500 * US);
    fake.orders.inflight_us_max.store(400, Ordering::Relaxed);
    fake.orders.contended.store(1, Ordering::Relaxed);
    assert_eq!(launch_for(fake, 500 * US), Outcome::Done(SUCCESS));
    let begin = fake.now.get();
    assert_eq!(launch_for(fake, 500 * US), Outcome::Done(SUCCESS));
    // It passes once less than the bound remains, before the first has ended.
    let waited = fake.now.get() - begin;
    assert!((100 * US..200 * US).contains(&waited), "{waited}");
    assert_eq!(fake.facts.bound_exceeded.load(Ordering::Relaxed), 0);
}

#[test]
fn an_empty_stream_does_not_wait_for_others_unless_processes_wait() {
    let fake = Fake::new();
    learn(fake, 500 * US);
    fake.orders.inflight_us_max.store(100, Ordering::Relaxed);
    assert_eq!(launch_for(fake, 500 * US), Outcome::Done(SUCCESS));
    let call = || SUCCESS;
    let other = STREAM + 16;
    let outcome = launch(
        fake,
        &call,
        other,
        DefaultStream::Legacy,
        KERNEL,
        Kind::Kernel,
    );
    assert_eq!(outcome, Outcome::Done(SUCCESS));
    assert!(fake.waits.borrow().is_empty());
}

#[test]
fn a_bound_that_cannot_be_kept_is_exceeded_and_counted() {
    let fake = Fake::new();
    learn(fake, 100 * US);
    fake.orders.inflight_us_max.store(50, Ordering::Relaxed);
    fake.orders.contended.store(1, Ordering::Relaxed);
    // A kernel that never ends, queued before its stream is known to run.
    fake.process.gate.word().add(100 * US);
    assert_eq!(launch_for(fake, 100 * US), Outcome::Done(SUCCESS));
    assert_eq!(fake.facts.bound_exceeded.load(Ordering::Relaxed), 1);
}

#[test]
fn kernel_time_and_estimate_are_those_of_the_device() {
    let fake = Fake::new();
    learn(fake, 300 * US);
    assert_eq!(fake.process.streams.busy_ns(), 900 * US);
    let info = fake.process.functions.lookup(KERNEL, || false);
    assert_eq!((info.estimate_ns, info.is_new), (300 * US, false));
    assert_eq!(fake.facts.inflight_us.load(Ordering::Relaxed), 0);
    assert_eq!(fake.facts.busy_since.load(Ordering::Relaxed), 0);
}

#[test]
fn the_oldest_work_in_flight_has_a_start() {
    let fake = Fake::new();
    let begin = fake.now.get();
    let _first = launch_for(fake, 300 * US);
    fake.pass(50 * US);
    let _second = launch_for(fake, 300 * US);
    assert_eq!(fake.facts.busy_since.load(Ordering::Relaxed), begin);
}

#[test]
fn a_series_of_launches_records_few_events() {
    let fake = Fake::new();
    learn(fake, 10 * US);
    let before = fake.events.borrow().len();
    for _ in 0..64 {
        assert_eq!(launch_for(fake, 10 * US), Outcome::Done(SUCCESS));
    }
    // Before the burst, after 1, 2, 4, 8 and then every sixteenth.
    assert!(fake.events.borrow().len() - before <= 9);
    fake.pass(640 * US);
    streams::mark_all(fake);
    streams::reap_all(fake);
    assert_eq!(in_flight(fake), 0);
}

#[test]
fn events_are_reused() {
    let fake = Fake::new();
    learn(fake, 10 * US);
    for _ in 0..50 {
        assert_eq!(launch_for(fake, 10 * US), Outcome::Done(SUCCESS));
        fake.pass(10 * US);
        streams::stream_synchronized(fake, STREAM, DefaultStream::Legacy);
    }
    assert!(fake.events.borrow().len() < 8);
}

#[test]
fn without_events_launches_count_until_they_have_returned() {
    let fake = Fake::new();
    fake.record_error.set(Some(719));
    assert_eq!(launch_for(fake, US), Outcome::Done(SUCCESS));
    assert_eq!(in_flight(fake), 0);
    // The error is reported once.
    assert_eq!(launch_for(fake, US), Outcome::Done(SUCCESS));
    let fatal = FromProcess::Report(Report::Fatal(719));
    assert_eq!(fake.take_sent(), [fatal]);
}

#[test]
fn a_sticky_error_ends_all_work_in_flight() {
    let fake = Fake::new();
    assert_eq!(launch_for(fake, US), Outcome::Done(SUCCESS));
    fake.query_error.set(Some(700));
    streams::reap_all(fake);
    assert_eq!(in_flight(fake), 0);
    let fatal = FromProcess::Report(Report::Fatal(700));
    assert_eq!(fake.take_sent(), [fatal]);
}

#[test]
fn default_streams_differ_by_context_and_thread() {
    let fake = Fake::new();
    let call = || SUCCESS;
    for default in [DefaultStream::Legacy, DefaultStream::PerThread] {
        let _made = launch(fake, &call, 0, default, KERNEL, Kind::Kernel);
    }
    fake.context.set(CONTEXT + 8);
    let _made = launch(fake, &call, 0, DefaultStream::Legacy, KERNEL, Kind::Kernel);
    let _again = launch(
        fake,
        &call,
        PER_THREAD,
        DefaultStream::Legacy,
        KERNEL,
        Kind::Kernel,
    );
    assert_eq!(fake.process.streams.snapshot().len(), 4);
}

#[test]
fn a_wait_at_the_gate_ends_the_pause_of_the_program() {
    let fake = Fake::new();
    gate::after_host_wait(fake);
    fake.pass(4 * SHORT_GAP);
    fake.orders.gate.set(3);
    fake.at_wait(|fake| {
        assert!(fake.process.gate.usually_pauses());
        fake.pass(1_000_000_000);
        fake.orders.gate.set(4);
    });
    assert_eq!(launch_for(fake, US), Outcome::Done(SUCCESS));
    // The wait itself is not part of the pause: the next one is short.
    assert!(fake.process.gate.usually_pauses());
}

#[test]
fn the_check_alone_leaves_no_mark() {
    let fake = Fake::new();
    assert!(check(fake));
    fake.orders.gate.set(3);
    assert!(!check(fake));
    assert!(!fake.process.threads.any_launching());
}

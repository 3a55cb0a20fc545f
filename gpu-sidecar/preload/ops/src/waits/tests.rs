use std::cell::Cell;

use protocol::message::{FromProcess, Report};

use super::*;
use crate::cuda::INVALID_VALUE;
use crate::fake::{Fake, KERNEL, STREAM, counted};
use crate::launch::{Kind, launch};

const LEGACY: DefaultStream = DefaultStream::Legacy;

fn launch_for(fake: &'static Fake, ns: u64) {
    let call = || {
        fake.run(STREAM, ns);
        SUCCESS
    };
    let _made = launch(fake, &call, STREAM, LEGACY, KERNEL, Kind::Kernel);
}

/// Launches until the function is measured.
fn learn(fake: &'static Fake, ns: u64) {
    for _ in 0..3 {
        launch_for(fake, ns);
        fake.pass(ns);
        let _waited = wait_for(fake, &|| SUCCESS, STREAM, LEGACY);
    }
}

#[test]
fn an_inactive_process_waits_and_enqueues_unmeasured() {
    let fake = Fake::new();
    fake.process.set_active(false);
    let passed = Outcome::Pass(Reason::Inactive);
    assert_eq!(wait(fake, &|| SUCCESS), passed);
    assert_eq!(wait_for(fake, &|| SUCCESS, STREAM, LEGACY), passed);
    assert_eq!(other(fake, STREAM, LEGACY), passed);
}

#[test]
fn a_wait_marks_before_and_collects_after() {
    let fake = Fake::new();
    learn(fake, 50_000);
    for _ in 0..3 {
        launch_for(fake, 50_000);
    }
    let call = || {
        fake.pass(150_000);
        SUCCESS
    };
    assert_eq!(wait(fake, &call), Outcome::Done(SUCCESS));
    assert_eq!(fake.process.gate.word().in_flight(), 0);
    assert_eq!(fake.process.streams.busy_ns(), 6 * 50_000);
}

#[test]
fn a_failed_wait_for_a_stream_collects_nothing() {
    let fake = Fake::new();
    learn(fake, 50_000);
    launch_for(fake, 50_000);
    fake.pass(50_000);
    let outcome = wait_for(fake, &|| INVALID_VALUE, STREAM, LEGACY);
    assert_eq!(outcome, Outcome::Done(INVALID_VALUE));
    assert_eq!(fake.process.gate.word().in_flight(), 50_000);
}

#[test]
fn an_operation_ends_the_burst_and_the_next_begins_after_it() {
    let fake = Fake::new();
    learn(fake, 100_000);
    launch_for(fake, 100_000);
    fake.pass(100_000);
    // A copy of 400 µs, then a kernel.
    let passed = other(fake, STREAM, LEGACY);
    assert_eq!(passed, Outcome::Pass(Reason::Measured));
    fake.run(STREAM, 400_000);
    launch_for(fake, 100_000);
    fake.pass(500_000);
    let _waited = wait_for(fake, &|| SUCCESS, STREAM, LEGACY);
    // The copy is no kernel time.
    assert_eq!(fake.process.streams.busy_ns(), 5 * 100_000);
}

#[test]
fn during_a_capture_operations_are_not_measured() {
    let fake = Fake::new();
    fake.process.captures.begin();
    let passed = other(fake, STREAM, LEGACY);
    assert_eq!(passed, Outcome::Pass(Reason::Capturing));
    let calls = Cell::new(0);
    let outcome = wait_for(fake, &counted(&calls), STREAM, LEGACY);
    assert_eq!((outcome, calls.get()), (Outcome::Done(SUCCESS), 1));
    assert_eq!(fake.invalidated.get(), 0);
}

#[test]
fn a_late_wait_counts_what_was_expected() {
    let fake = Fake::new();
    learn(fake, 100_000);
    // The third launch of a burst has no mark of its own.
    for _ in 0..3 {
        launch_for(fake, 100_000);
    }
    // The program waits by itself for a long time before it asks the driver.
    fake.pass(9_000_000);
    let _waited = wait_for(fake, &|| SUCCESS, STREAM, LEGACY);
    assert_eq!(fake.process.streams.busy_ns(), 6 * 100_000);
    assert_eq!(fake.process.gate.word().in_flight(), 0);
}

#[test]
fn an_error_that_a_wait_returns_and_that_stays_is_reported_once() {
    for one_stream in [true, false] {
        let fake = Fake::new();
        for code in [INVALID_VALUE, 600, 700, 719] {
            let call = || code;
            let outcome = match one_stream {
                true => wait_for(fake, &call, STREAM, LEGACY),
                false => wait(fake, &call),
            };
            assert_eq!(outcome, Outcome::Done(code));
        }
        let fatal = FromProcess::Report(Report::Fatal(700));
        assert_eq!(fake.take_sent(), [fatal]);
    }
}

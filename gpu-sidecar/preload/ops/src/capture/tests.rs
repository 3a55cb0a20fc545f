use std::cell::Cell;

use super::*;
use crate::capture_mode::{any, relaxed, set_relaxed};
use crate::cuda::{CAPTURE_RELAXED, INVALID_VALUE};
use crate::fake::{Fake, KERNEL, STREAM};
use crate::launch::{Kind, launch};

const DEFAULT: DefaultStream = DefaultStream::Legacy;

#[test]
fn a_capture_is_counted_from_its_begin_to_its_end() {
    let fake = Fake::new();
    let reserved = Cell::new(false);
    let call = || {
        assert!(any(fake), "counted before the driver begins it");
        SUCCESS
    };
    let outcome = begin(fake, &call, STREAM, DEFAULT, || reserved.set(true));
    assert_eq!(outcome, Outcome::Done(SUCCESS));
    assert!(reserved.get() && any(fake));
    assert_eq!(end(fake, &|| SUCCESS), Outcome::Done(SUCCESS));
    assert!(!any(fake));
}

#[test]
fn a_capture_that_the_driver_refuses_is_none() {
    let fake = Fake::new();
    let outcome = begin(fake, &|| INVALID_VALUE, STREAM, DEFAULT, || {});
    assert_eq!(outcome, Outcome::Done(INVALID_VALUE));
    assert!(!any(fake));
}

#[test]
fn work_is_measured_up_to_a_capture() {
    let fake = Fake::new();
    let call = || {
        fake.run(STREAM, 10_000);
        SUCCESS
    };
    // The third launch has no mark until something follows it.
    for _ in 0..3 {
        fake.process.functions.record(&[(0, 1)], 1);
        let _made = launch(fake, &call, STREAM, DEFAULT, KERNEL, Kind::Kernel);
    }
    let _begun = begin(fake, &|| SUCCESS, STREAM, DEFAULT, || {});
    fake.capturing.borrow_mut().insert(STREAM);
    fake.pass(30_000);
    streams::reap_all(fake);
    assert_eq!(fake.process.gate.word().in_flight(), 0);
    assert_eq!(fake.invalidated.get(), 0);
}

#[test]
fn the_mode_is_relaxed_for_this_librarys_calls_alone() {
    let fake = Fake::new();
    fake.capture_mode.set(1);
    relaxed(fake, || assert_eq!(fake.capture_mode.get(), 1));
    fake.process.captures.begin();
    relaxed(fake, || {
        assert_eq!(fake.capture_mode.get(), CAPTURE_RELAXED)
    });
    assert_eq!(fake.capture_mode.get(), 1);
    set_relaxed(fake);
    assert_eq!(fake.capture_mode.get(), CAPTURE_RELAXED);
}

#[test]
fn a_wait_for_an_event_is_measured_unless_it_may_join_a_capture() {
    let fake = Fake::new();
    let call = || SUCCESS;
    let _made = launch(fake, &call, STREAM, DEFAULT, KERNEL, Kind::Kernel);
    let other_work = || fake.process.streams.snapshot()[0].lock().other_work;
    streams::stream_synchronized(fake, STREAM, DEFAULT);
    assert!(!other_work());
    fake.process.captures.begin();
    let outcome = wait_event(fake, &call, STREAM, DEFAULT);
    assert_eq!(outcome, Outcome::Done(SUCCESS));
    assert!(!other_work());
    fake.process.captures.end();
    let outcome = wait_event(fake, &call, STREAM, DEFAULT);
    assert_eq!(outcome, Outcome::Done(SUCCESS));
    assert!(other_work());
}

use std::cell::Cell;

use preload_state::streams::DefaultStream;

use super::*;
use crate::cuda::INVALID_VALUE;
use crate::fake::{CONTEXT, Fake, KERNEL, STREAM};
use crate::launch::{Kind, launch};

/// Returns a process with work in flight.
fn busy() -> &'static Fake {
    let fake = Fake::new();
    let call = || {
        fake.run(STREAM, 1_000_000);
        SUCCESS
    };
    let _made = launch(
        fake,
        &call,
        STREAM,
        DefaultStream::Legacy,
        KERNEL,
        Kind::Kernel,
    );
    fake
}

fn in_flight(fake: &'static Fake) -> u64 {
    fake.process.gate.word().in_flight()
}

#[test]
fn a_destroyed_context_takes_its_streams_and_memory_with_it() {
    let fake = busy();
    let forgotten = Cell::new(0);
    let outcome = destroy_context(fake, &|| SUCCESS, CONTEXT, |gone| forgotten.set(gone));
    assert_eq!(outcome, Outcome::Done(SUCCESS));
    assert_eq!((in_flight(fake), forgotten.get()), (0, CONTEXT));
    assert!(fake.process.streams.snapshot().is_empty());
}

#[test]
fn a_context_that_is_not_destroyed_keeps_its_work() {
    let fake = busy();
    let outcome = destroy_context(fake, &|| INVALID_VALUE, CONTEXT, |_| panic!("it lives"));
    assert_eq!(outcome, Outcome::Done(INVALID_VALUE));
    let other = destroy_context(fake, &|| SUCCESS, CONTEXT + 8, |_| {});
    assert_eq!(other, Outcome::Done(SUCCESS));
    assert!(in_flight(fake) > 0);
}

#[test]
fn a_detached_context_is_gone_with_its_last_use() {
    let fake = busy();
    fake.context.set(CONTEXT + 8);
    let outcome = detach_context(fake, &|| SUCCESS, CONTEXT, |_| panic!("it is in use"));
    assert_eq!(outcome, Outcome::Done(SUCCESS));
    assert!(in_flight(fake) > 0);
    let forgotten = Cell::new(0);
    let last = || {
        fake.destroyed.borrow_mut().insert(CONTEXT);
        SUCCESS
    };
    let outcome = detach_context(fake, &last, CONTEXT, |gone| forgotten.set(gone));
    assert_eq!(outcome, Outcome::Done(SUCCESS));
    assert_eq!((in_flight(fake), forgotten.get()), (0, CONTEXT));
    assert_eq!(fake.context.get(), CONTEXT + 8, "the current context stays");
}

#[test]
fn the_primary_context_is_gone_with_its_last_reference() {
    let fake = busy();
    fake.primary.set(true);
    let outcome = release_primary(fake, &|| SUCCESS, 0, |_| panic!("it is still active"));
    assert_eq!(outcome, Outcome::Done(SUCCESS));
    assert!(in_flight(fake) > 0);
    let forgotten = Cell::new(0);
    let last = || {
        fake.primary.set(false);
        SUCCESS
    };
    let outcome = release_primary(fake, &last, 0, |gone| forgotten.set(gone));
    assert_eq!(outcome, Outcome::Done(SUCCESS));
    assert_eq!((in_flight(fake), forgotten.get()), (0, CONTEXT));
}

#[test]
fn an_inactive_process_destroys_without_a_trace() {
    let fake = Fake::new();
    fake.process.set_active(false);
    let passed = Outcome::Pass(Reason::Inactive);
    assert_eq!(release_primary(fake, &|| SUCCESS, 0, |_| panic!()), passed);
    assert_eq!(destroy_stream(fake, STREAM), passed);
    let outcome = destroy_context(fake, &|| SUCCESS, CONTEXT, |_| panic!());
    assert_eq!(outcome, Outcome::Done(SUCCESS));
}

#[test]
fn the_work_of_a_destroyed_stream_is_measured_to_its_end() {
    let fake = busy();
    assert_eq!(
        destroy_stream(fake, STREAM),
        Outcome::Pass(Reason::Measured)
    );
    assert!(in_flight(fake) > 0);
    fake.pass(1_000_000);
    assert_eq!(streams::first_unfinished(fake), None);
    assert_eq!(in_flight(fake), 0);
    assert_eq!(fake.process.streams.busy_ns(), 1_000_000);
    assert!(fake.process.streams.snapshot().is_empty());
}

#[test]
fn a_destroyed_stream_that_was_never_used_is_nothing() {
    let fake = Fake::new();
    let outcome = destroy_stream(fake, STREAM);
    assert_eq!(outcome, Outcome::Pass(Reason::Measured));
}

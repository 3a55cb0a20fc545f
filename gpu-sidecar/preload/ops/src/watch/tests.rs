use preload_state::streams::DefaultStream;
use preload_state::watch::{CONTENDED_INTERVAL, IDLE_INTERVAL};

use super::*;
use crate::cuda::SUCCESS;
use crate::fake::{Fake, KERNEL, STREAM};
use crate::launch::{Kind, launch};
use crate::outcome::Outcome;

fn launch_for(fake: &'static Fake, ns: u64) {
    let call = || {
        fake.run(STREAM, ns);
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
}

#[test]
fn a_closed_gate_is_answered_when_nothing_is_in_flight() {
    let fake = Fake::new();
    launch_for(fake, 300_000);
    let end = fake.now.get() + 300_000;
    fake.orders.gate.set(3);
    let mut watch = Watch::new();
    step(fake, &mut watch);
    assert_eq!(fake.now.get(), end);
    assert_eq!(fake.take_sent(), [FromProcess::Closed { epoch: 2 }]);
    assert_eq!(fake.process.gate.word().in_flight(), 0);
    // Then it sleeps.
    step(fake, &mut watch);
    assert_eq!(*fake.waits.borrow(), [IDLE_INTERVAL]);
    assert!(fake.take_sent().is_empty());
}

#[test]
fn a_launch_in_progress_is_waited_for_before_the_answer() {
    let fake = Fake::new();
    let mut guard = Some(fake.process.threads.begin(None));
    fake.orders.gate.set(3);
    fake.at_wait(move |fake| {
        assert!(fake.take_sent().is_empty());
        drop(guard.take());
    });
    step(fake, &mut Watch::new());
    assert_eq!(fake.take_sent(), [FromProcess::Closed { epoch: 2 }]);
}

#[test]
fn an_unused_token_is_returned_under_contention() {
    let fake = Fake::new();
    fake.orders.contended.store(1, Ordering::Relaxed);
    let mut watch = Watch::new();
    step(fake, &mut watch);
    assert_eq!(fake.waits.take(), [CONTENDED_INTERVAL]);
    step(fake, &mut watch);
    assert_eq!(fake.take_sent(), [FromProcess::Closed { epoch: 2 }]);
    assert!(fake.waits.take().is_empty());
}

#[test]
fn work_is_waited_for_before_a_token_is_returned() {
    let fake = Fake::new();
    fake.orders.contended.store(1, Ordering::Relaxed);
    launch_for(fake, 300_000);
    let mut watch = Watch::new();
    let end = fake.now.get() + 300_000;
    step(fake, &mut watch);
    assert_eq!(fake.now.get(), end);
    assert!(fake.take_sent().is_empty());
    for _ in 0..2 {
        step(fake, &mut watch);
    }
    assert_eq!(fake.take_sent(), [FromProcess::Closed { epoch: 2 }]);
}

#[test]
fn a_stream_of_another_thread_is_polled() {
    let fake = Fake::new();
    let call = || {
        fake.run(crate::cuda::PER_THREAD, 150_000);
        SUCCESS
    };
    let default = DefaultStream::PerThread;
    // The first launches of a function have a mark each; learn it first.
    for _ in 0..3 {
        let _made = launch(fake, &call, 0, default, KERNEL, Kind::Kernel);
        fake.pass(200_000);
        streams::stream_synchronized(fake, 0, default);
    }
    for _ in 0..3 {
        let _made = launch(fake, &call, 0, default, KERNEL, Kind::Kernel);
    }
    fake.orders.gate.set(3);
    // Its third launch has no mark until its own thread waits.
    fake.at_wait(streams::mark_all);
    step(fake, &mut Watch::new());
    assert!(fake.waits.borrow().contains(&POLL_INTERVAL));
    assert_eq!(fake.take_sent(), [FromProcess::Closed { epoch: 2 }]);
}

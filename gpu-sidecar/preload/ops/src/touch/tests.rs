use std::cell::Cell;
use std::sync::atomic::Ordering;

use preload_state::gate::SHORT_GAP;
use protocol::message::FromProcess;

use super::*;
use crate::cuda::{Code, INVALID_VALUE, SUCCESS};
use crate::fake::{Fake, KERNEL, STREAM, counted};
use crate::launch::{Kind, launch};

const LEGACY: DefaultStream = DefaultStream::Legacy;
const AT_MOST: Duration = Duration::from_secs(1);

/// Every way to touch memory.
fn every(fake: &'static Fake, call: &dyn Fn() -> Code) -> [Outcome; 3] {
    [
        enqueue(fake, call, STREAM, LEGACY),
        block(fake, call),
        touch(fake, call),
    ]
}

#[test]
fn touches_pass_while_memory_is_on_the_device() {
    let fake = Fake::new();
    // The agent's gate is closed: a touch needs no token.
    fake.orders.gate.set(3);
    let calls = Cell::new(0);
    let outcomes = every(fake, &counted(&calls));
    assert_eq!(outcomes, [Outcome::Done(SUCCESS); 3]);
    assert_eq!(calls.get(), 3);
    assert!(fake.waits.borrow().is_empty());
    assert_eq!(touch(fake, &|| INVALID_VALUE), Outcome::Done(INVALID_VALUE));
    assert!(!fake.process.threads.any_touching());
}

#[test]
fn touches_wait_until_memory_is_back() {
    type Touch = fn(&'static Fake, Call<'_>) -> Outcome;
    let ways: [Touch; 3] = [
        |fake, call| enqueue(fake, call, STREAM, LEGACY),
        |fake, call| block(fake, call),
        |fake, call| touch(fake, call),
    ];
    for way in ways {
        let fake = Fake::new();
        assert!(shut(fake, AT_MOST));
        fake.at_wait(|fake| assert!(!fake.process.threads.any_touching()));
        fake.at_wait(open);
        let calls = Cell::new(0);
        let call = || {
            assert!(fake.process.memory_gate.is_open());
            counted(&calls)()
        };
        assert_eq!(way(fake, &call), Outcome::Done(SUCCESS));
        assert_eq!((calls.get(), fake.waits.borrow().len()), (1, 2));
        assert_eq!(fake.woken.get(), 1);
    }
}

#[test]
fn a_launch_waits_until_memory_is_back_although_it_has_a_token() {
    let fake = Fake::new();
    assert!(shut(fake, AT_MOST));
    fake.at_wait(|fake| {
        assert_eq!(
            fake.process.gate.word().in_flight(),
            0,
            "it is not announced"
        );
        open(fake);
    });
    let calls = Cell::new(0);
    let outcome = launch(fake, &counted(&calls), STREAM, LEGACY, KERNEL, Kind::Kernel);
    assert_eq!((outcome, calls.get()), (Outcome::Done(SUCCESS), 1));
    assert_eq!(fake.waits.borrow().len(), 1);
    // No token is asked for, but the memory.
    assert_eq!(fake.take_sent(), [FromProcess::MemoryWanted]);
}

#[test]
fn captured_operations_and_those_of_the_driver_itself_never_wait() {
    let fake = Fake::new();
    fake.process.captures.begin();
    fake.capturing.borrow_mut().insert(STREAM);
    assert!(shut(fake, AT_MOST));
    let outcome = enqueue(fake, &|| SUCCESS, STREAM, LEGACY);
    assert_eq!(outcome, Outcome::Pass(Reason::Capturing));
    fake.set_inside(true);
    let passed = Outcome::Pass(Reason::Nested);
    assert_eq!(every(fake, &|| SUCCESS), [passed; 3]);
    assert!(fake.waits.borrow().is_empty());
}

/// The driver may copy by kernels of its own, which it launches by its exported functions.
#[test]
fn calls_within_a_touch_pass() {
    let fake = Fake::new();
    let within = Cell::new(None);
    let call = || {
        within.set(Some(enqueue(fake, &|| SUCCESS, STREAM, LEGACY)));
        SUCCESS
    };
    assert_eq!(touch(fake, &call), Outcome::Done(SUCCESS));
    assert_eq!(within.get(), Some(Outcome::Pass(Reason::Nested)));
}

#[test]
fn a_touch_in_another_stream_waits_during_a_capture_and_leaves_it_valid() {
    let fake = Fake::new();
    fake.process.captures.begin();
    fake.capturing.borrow_mut().insert(STREAM);
    assert!(shut(fake, AT_MOST));
    fake.at_wait(open);
    let outcome = enqueue(fake, &|| SUCCESS, STREAM + 8, LEGACY);
    assert_eq!(outcome, Outcome::Done(SUCCESS));
    assert_eq!((fake.waits.borrow().len(), fake.invalidated.get()), (1, 0));
}

#[test]
fn an_inactive_process_touches_unchecked() {
    let fake = Fake::new();
    fake.process.set_active(false);
    assert!(shut(fake, AT_MOST));
    let passed = Outcome::Pass(Reason::Inactive);
    assert_eq!(every(fake, &|| SUCCESS), [passed; 3]);
}

#[test]
fn the_gate_is_shut_once_no_call_is_in_progress() {
    let fake = Fake::new();
    let other = fake.process.threads.register(2, |_| false);
    let third = fake.process.threads.register(3, |_| false);
    let touching = fake.process.threads.begin_touch(other);
    let launching = fake.process.threads.begin(third);
    fake.at_wait(|_| drop(touching));
    fake.at_wait(|_| drop(launching));
    assert!(shut(fake, AT_MOST));
    assert_eq!((fake.barriers.get(), fake.waits.borrow().len()), (1, 2));
}

#[test]
fn a_call_that_blocks_for_too_long_keeps_the_memory_and_the_gate_opens_again() {
    let fake = Fake::new();
    let other = fake.process.threads.register(2, |_| false);
    let _touching = fake.process.threads.begin_touch(other);
    assert!(!shut(fake, Duration::from_millis(5)));
    assert!(fake.process.memory_gate.is_open());
    assert_eq!(fake.woken.get(), 1);
    let waited: Duration = fake.waits.borrow().iter().sum();
    assert!(waited >= Duration::from_millis(5) && waited < Duration::from_millis(6));
}

/// Launches a kernel of 50 µs.
fn launch_one(fake: &'static Fake) {
    let call = || {
        fake.run(STREAM, 50_000);
        SUCCESS
    };
    let _made = launch(fake, &call, STREAM, LEGACY, KERNEL, Kind::Kernel);
}

/// Copies, and waits for the kernel before.
fn copy_after(fake: &'static Fake) {
    let call = || {
        fake.pass(50_000);
        SUCCESS
    };
    assert_eq!(block(fake, &call), Outcome::Done(SUCCESS));
}

#[test]
fn a_blocking_copy_ends_the_measurement_of_what_was_launched_before_it() {
    let fake = Fake::new();
    for _ in 0..3 {
        launch_one(fake);
        copy_after(fake);
    }
    assert_eq!(fake.process.streams.busy_ns(), 3 * 50_000);
    assert_eq!(fake.process.gate.word().in_flight(), 0);
}

#[test]
fn a_blocking_copy_of_a_program_that_pauses_returns_the_token_under_contention() {
    let fake = Fake::new();
    fake.orders.contended.store(1, Ordering::Relaxed);
    for _ in 0..4 {
        launch_one(fake);
        copy_after(fake);
        if !fake.sent.borrow().is_empty() {
            break;
        }
        fake.pass(4 * SHORT_GAP);
    }
    assert_eq!(fake.take_sent(), [FromProcess::Closed { epoch: 2 }]);
}

/// Returns whether some launch has no mark, so that its end would not be noticed.
fn any_unmarked(fake: &'static Fake) -> bool {
    let streams = fake.process.streams.snapshot();
    streams.iter().any(|stream| stream.lock().has_unmarked())
}

#[test]
fn work_launched_before_a_wait_for_memory_is_measured_meanwhile() {
    let fake = Fake::new();
    for _ in 0..3 {
        launch_one(fake);
        copy_after(fake);
    }
    // The third launch of a burst has no mark of its own.
    for _ in 0..3 {
        launch_one(fake);
    }
    assert!(any_unmarked(fake));
    assert!(shut(fake, AT_MOST));
    fake.at_wait(|fake| {
        assert!(!any_unmarked(fake));
        open(fake);
    });
    launch_one(fake);
    assert!(!fake.waits.borrow().is_empty());
}

#[test]
fn a_wait_for_memory_is_no_pause_of_the_program() {
    let fake = Fake::new();
    fake.orders.contended.store(1, Ordering::Relaxed);
    for _ in 0..3 {
        launch_one(fake);
        copy_after(fake);
    }
    assert!(shut(fake, AT_MOST));
    fake.at_wait(|fake| {
        fake.pass(1_000 * SHORT_GAP);
        open(fake);
    });
    launch_one(fake);
    copy_after(fake);
    assert_eq!(
        fake.take_sent(),
        [FromProcess::MemoryWanted],
        "the token stays"
    );
}

#[test]
fn an_agent_without_a_heartbeat_is_given_up_while_memory_is_waited_for() {
    let fake = Fake::new();
    assert!(shut(fake, AT_MOST));
    for _ in 0..40 {
        fake.at_wait(|fake| {
            if fake.abandoned.get() > 0 {
                open(fake);
            }
        });
    }
    let touched = touch(fake, &|| SUCCESS);
    assert_eq!(touched, Outcome::Done(SUCCESS));
    assert_eq!(fake.abandoned.get(), 1);
}

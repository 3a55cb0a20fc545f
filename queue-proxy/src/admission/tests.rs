use super::*;
use policy::gate::Order;
use policy::slo::Signals;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use std::time::Duration;

fn admission(depth: usize, order: Order, late: Late) -> (Arc<Admission>, Clock) {
    let clock = Clock::start();
    (
        Admission::new(
            Settings {
                concurrency: 1,
                depth,
                order,
                late,
            },
            clock,
        ),
        clock,
    )
}

fn claim(clock: Clock, objective_ms: u64) -> Claim {
    let arrival = clock.now();
    let signals = Signals {
        slo: Some(Span::from_millis(objective_ms)),
        revision_timeout: Span::from_secs(300),
        ..Signals::default()
    };
    Claim {
        arrival,
        deadline: signals.deadline(arrival),
        class: ClassId(0),
        may_move: true,
        trace: TraceContext::default(),
        back: None,
    }
}

async fn pending(future: &mut Acquire) {
    tokio::select! {
        biased;
        _ = future => panic!("granted while the slot is taken"),
        () = std::future::ready(()) => {}
    }
}

#[tokio::test(start_paused = true)]
async fn the_most_urgent_starts_first() {
    let (gate, clock) = admission(10, Order::Deadline, Late::Serve);
    let held = Arc::clone(&gate)
        .acquire(claim(clock, 1_000))
        .await
        .unwrap();
    let mut relaxed = Arc::clone(&gate).acquire(claim(clock, 900));
    let mut urgent = Arc::clone(&gate).acquire(claim(clock, 100));
    pending(&mut relaxed).await;
    pending(&mut urgent).await;
    drop(held);
    let permit = urgent.await.unwrap();
    pending(&mut relaxed).await;
    drop(permit);
    relaxed.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_beside_a_load_stands_for_what_was_after_it_until_one_ran_without() {
    let (gate, clock) = admission(1, Order::Arrival, Late::Serve);
    let started = Arc::clone(&gate).acquire(claim(clock, 1_000)).await;
    let Ok(Admitted::Start(mut permit)) = started else {
        panic!("it starts at once");
    };
    let ms = Span::from_millis;
    let mut observed = |load, execution| {
        permit.load = load;
        let mut state = gate.lock();
        state.observe(&permit, execution);
        state.profile.estimate(ClassId(0))
    };
    assert_eq!(observed(Some(ms(60)), ms(210)), ms(150));
    assert_eq!(observed(None, ms(40)), ms(40));
    // It is known now.
    assert_eq!(observed(Some(ms(150)), ms(210)), ms(40));
}

#[tokio::test(start_paused = true)]
async fn leaving_the_queue_frees_its_entry() {
    let (gate, clock) = admission(1, Order::Arrival, Late::Serve);
    let held = Arc::clone(&gate)
        .acquire(claim(clock, 1_000))
        .await
        .unwrap();
    let mut waiting = Arc::clone(&gate).acquire(claim(clock, 1_000));
    pending(&mut waiting).await;
    let refused = Arc::clone(&gate)
        .acquire(claim(clock, 1_000))
        .await
        .unwrap_err();
    assert_eq!(refused.reason, RefuseReason::Full);
    drop(waiting);
    assert_eq!(gate.load(), (1, 0));
    drop(held);
    assert_eq!(gate.load(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_slot_granted_to_a_cancelled_request_passes_to_the_next() {
    let (gate, clock) = admission(2, Order::Arrival, Late::Serve);
    let held = Arc::clone(&gate)
        .acquire(claim(clock, 1_000))
        .await
        .unwrap();
    let mut first = Arc::clone(&gate).acquire(claim(clock, 1_000));
    let mut second = Arc::clone(&gate).acquire(claim(clock, 1_000));
    pending(&mut first).await;
    pending(&mut second).await;
    drop(held);
    drop(first);
    second.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_displaced_request_is_notified_although_its_queue_entry_is_reused() {
    let (gate, clock) = admission(1, Order::Deadline, Late::Serve);
    let held = Arc::clone(&gate)
        .acquire(claim(clock, 1_000))
        .await
        .unwrap();
    let mut late = Arc::clone(&gate).acquire(claim(clock, 10));
    pending(&mut late).await;
    tokio::time::advance(Duration::from_millis(20)).await;
    let mut newcomer = Arc::clone(&gate).acquire(claim(clock, 1_000));
    pending(&mut newcomer).await;
    assert_eq!(late.await.unwrap_err().reason, RefuseReason::Displaced);
    pending(&mut newcomer).await;
    drop(held);
    newcomer.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn late_requests_are_shed_at_once_except_for_one_a_second() {
    let (gate, clock) = admission(10, Order::Deadline, Late::Shed);
    tokio::spawn(Arc::clone(&gate).run_shedding());
    let held = Arc::clone(&gate)
        .acquire(claim(clock, 10_000))
        .await
        .unwrap();
    let mut kept = Arc::clone(&gate).acquire(claim(clock, 40));
    pending(&mut kept).await;
    let shed = Arc::clone(&gate).acquire(claim(clock, 50));
    let begin = tokio::time::Instant::now();
    let refused = shed.await.unwrap_err();
    assert_eq!(refused.reason, RefuseReason::Late);
    assert!(
        begin.elapsed() >= Duration::from_millis(50),
        "{:?}",
        begin.elapsed()
    );
    assert!(
        begin.elapsed() < Duration::from_millis(55),
        "{:?}",
        begin.elapsed()
    );
    pending(&mut kept).await;
    drop(held);
    kept.await.unwrap();
}

/// Returns whether the next request starts although the agent has sent a recall, which is not read yet, before the one that runs ends.
async fn starts_after(end: impl FnOnce(&mut Permit)) -> bool {
    let (gate, clock) = admission(10, Order::Arrival, Late::Serve);
    gate.require_lease(None, Drain::new(Duration::from_secs(30)));
    let flags = SocketFlags::CLOEXEC;
    let kind = SocketType::SEQPACKET;
    let (here, agent) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    gate.inbox().set(Some(Arc::new(here)));
    gate.receive(&ToQueue::Lease { epoch: 1 });
    let running = Arc::clone(&gate).acquire(claim(clock, 1_000)).await;
    let Ok(Admitted::Start(mut permit)) = running else {
        panic!("it starts at once");
    };
    let mut waiting = Arc::clone(&gate).acquire(claim(clock, 1_000));
    pending(&mut waiting).await;
    let recall = ToQueue::Recall { epoch: 1 };
    send(&agent, recall.write().finish(), SendFlags::empty()).unwrap();
    end(&mut permit);
    drop(permit);
    tokio::select! {
        biased;
        _ = &mut waiting => true,
        () = std::future::ready(()) => false,
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_failed_lets_none_start_under_a_lease_that_is_recalled() {
    assert!(
        !starts_after(|permit| {
            permit.note_failure();
            permit.complete();
        })
        .await
    );
    // Its answer has broken off.
    assert!(!starts_after(|_| {}).await);
    // Of one that was answered nothing is known, and no message is read for it.
    assert!(starts_after(Permit::complete).await);
}

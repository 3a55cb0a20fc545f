use protocol::message::Refusal;

use super::*;

const MS: u64 = 1_000_000;
const NO_AGENT: &str = "no agent answers: this process computes without limits until one does";
const SILENT: &str = "the agent is running but does not answer yet: this process waits for it";

fn terms(on_loss: OnLoss) -> Terms {
    Terms {
        on_loss,
        visible_devices: String::new(),
        mps_pipe_directory: String::new(),
        active_thread_hundredths: 10_000,
        mps_memory_limit: 0,
        memory_limit: 1 << 30,
        context_residue: 0,
    }
}

fn welcome(on_loss: OnLoss) -> Event {
    Event::Reply(Some(FromAgent::Welcome {
        on_loss,
        visible_devices: String::new(),
        mps_pipe_directory: String::new(),
        active_thread_hundredths: 10_000,
        mps_memory_limit: 0,
        memory_limit: 1 << 30,
        context_residue: 0,
        pod: String::new(),
    }))
}

fn refused(text: &str) -> Event {
    Event::Reply(Some(FromAgent::Refused {
        reason: Refusal::SlotLost,
        text: text.to_owned(),
    }))
}

const PAGES: Event = Event::Reply(Some(FromAgent::Pages));
const CONNECTED: Event = Event::Connect(ConnectOutcome::Connected);
const NOBODY: Event = Event::Connect(ConnectOutcome::NoAgent);
const BUSY: Event = Event::Connect(ConnectOutcome::Busy);
const IDLE: Activity = Activity {
    is_hung: false,
    computes: false,
};
const COMPUTES: Activity = Activity {
    is_hung: false,
    computes: true,
};
const HUNG: Activity = Activity {
    is_hung: true,
    computes: true,
};

fn hello(again: bool, open: bool) -> Action {
    Action::Hello { again, open }
}

fn log(line: &str) -> Action {
    Action::Log(Cow::Owned(line.to_owned()))
}

/// Link under test, with its time in milliseconds.
struct Test {
    link: Link,
    now: u64,
}

impl Test {
    fn new() -> Self {
        Self {
            link: Link::new(),
            now: 5_000,
        }
    }

    /// Returns a link whose thread runs, attached to an agent with these terms.
    fn attached(on_loss: OnLoss) -> Self {
        let mut test = Self::new();
        test.on(Event::Begin { has_socket: true }, &[Action::Connect]);
        test.on(CONNECTED, &[hello(false, false)]);
        let terms = terms(on_loss);
        let all = [
            Action::Limits(terms.clone()),
            Action::SetEnvironment(terms),
            Action::Return(true),
        ];
        test.on(welcome(on_loss), &all);
        test.on(Event::Initialised { is_connected: true }, &[Action::Attach]);
        test.on(PAGES, &[Action::MapPages]);
        test.on(Event::Mapped(true), &[Action::Start]);
        test.on(Event::Started(true), &[Action::Return(true)]);
        let run = Event::Run {
            is_connected: true,
            activity: IDLE,
        };
        test.on(run, &[Action::Receive]);
        assert_eq!(test.link.phase(), Phase::Attached);
        test
    }

    /// Expects exactly these actions after the event.
    #[track_caller]
    fn on(&mut self, event: Event, expected: &[Action]) {
        self.link.handle(self.now * MS, event);
        let actions: Vec<Action> = std::iter::from_fn(|| self.link.poll()).collect();
        assert_eq!(actions, expected);
    }

    /// Lets time pass, in milliseconds.
    #[track_caller]
    fn after(&mut self, ms: u64, event: Event, expected: &[Action]) {
        self.now += ms;
        self.on(event, expected);
    }
}

#[test]
fn a_process_without_a_socket_is_left_alone() {
    let mut test = Test::new();
    let end = [Action::Return(true)];
    test.on(Event::Begin { has_socket: false }, &end);
    assert_eq!(test.link.phase(), Phase::Off);
    test.on(
        Event::Initialised {
            is_connected: false,
        },
        &end,
    );
    test.on(Event::Begin { has_socket: true }, &end);
    assert_eq!(test.link.phase(), Phase::Off);
}

#[test]
fn a_start_without_an_agent_waits_for_it_for_100_ms() {
    let mut test = Test::new();
    test.on(Event::Begin { has_socket: true }, &[Action::Connect]);
    let pause = [Action::Pause(RETRY_INTERVAL)];
    test.on(NOBODY, &pause);
    for _ in 0..19 {
        test.after(5, Event::Elapsed(IDLE), &[Action::Connect]);
        test.on(NOBODY, &pause);
    }
    test.after(5, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(NOBODY, &[log(NO_AGENT), Action::Return(true)]);
    assert_eq!(test.link.phase(), Phase::Ready);
    // The library is in effect, and its thread searches the agent.
    test.on(
        Event::Initialised {
            is_connected: false,
        },
        &[Action::Start],
    );
    test.on(Event::Started(true), &[Action::Return(true)]);
    let run = Event::Run {
        is_connected: false,
        activity: IDLE,
    };
    test.on(run, &[Action::Connect]);
    assert!(test.link.is_lost());
}

#[test]
fn a_start_waits_for_an_agent_that_is_overloaded() {
    let mut test = Test::new();
    let pause = Action::Pause(RETRY_INTERVAL);
    let retry = std::slice::from_ref(&pause);
    test.on(Event::Begin { has_socket: true }, &[Action::Connect]);
    test.on(NOBODY, retry);
    test.after(99, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(BUSY, &[log(SILENT), pause.clone()]);
    // The absence begins anew, and the line is logged once.
    test.after(1, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(NOBODY, retry);
    test.after(99, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(CONNECTED, &[hello(false, false)]);
    let expected = [Action::Shutdown, pause.clone()];
    test.after(2_000, Event::Reply(None), &expected);
    assert_eq!(test.link.phase(), Phase::New);
}

#[test]
fn a_refusal_fails_the_start_and_every_later_one() {
    let mut test = Test::new();
    test.on(Event::Begin { has_socket: true }, &[Action::Connect]);
    test.on(CONNECTED, &[hello(false, false)]);
    let line = log("the agent refuses this process: no slot");
    test.on(refused("no slot"), &[line, Action::Return(false)]);
    assert_eq!(test.link.phase(), Phase::Refused);
    test.on(Event::Begin { has_socket: true }, &[Action::Return(false)]);
}

#[test]
fn an_unexpected_reply_is_a_lost_connection() {
    let mut test = Test::new();
    test.on(Event::Begin { has_socket: true }, &[Action::Connect]);
    test.on(CONNECTED, &[hello(false, false)]);
    let expected = [Action::Shutdown, log(SILENT), Action::Pause(RETRY_INTERVAL)];
    test.on(PAGES, &expected);
}

#[test]
fn an_attachment_that_is_lost_starts_with_a_closed_gate() {
    let mut test = Test::new();
    test.on(Event::Begin { has_socket: true }, &[Action::Connect]);
    test.on(CONNECTED, &[hello(false, false)]);
    test.link.handle(test.now, welcome(OnLoss::Open));
    while test.link.poll().is_some() {}
    test.on(Event::Initialised { is_connected: true }, &[Action::Attach]);
    let expected = [Action::Shutdown, Action::UseClosedOrders, Action::Start];
    test.on(Event::Reply(None), &expected);
    test.on(Event::Started(true), &[Action::Return(true)]);
    assert_eq!(test.link.phase(), Phase::Attached);
}

#[test]
fn an_attachment_that_is_refused_fails_the_start() {
    let mut test = Test::new();
    test.on(Event::Begin { has_socket: true }, &[Action::Connect]);
    test.on(CONNECTED, &[hello(false, false)]);
    test.link.handle(test.now, welcome(OnLoss::Open));
    while test.link.poll().is_some() {}
    test.on(Event::Initialised { is_connected: true }, &[Action::Attach]);
    let line = log("the agent refuses this process: another device");
    test.on(refused("another device"), &[line, Action::Return(false)]);
    assert_eq!(test.link.phase(), Phase::Refused);
}

#[test]
fn without_threads_the_library_is_off() {
    let mut test = Test::new();
    test.on(Event::Begin { has_socket: true }, &[Action::Connect]);
    test.on(CONNECTED, &[hello(false, false)]);
    test.link.handle(test.now, welcome(OnLoss::Open));
    while test.link.poll().is_some() {}
    test.on(Event::Initialised { is_connected: true }, &[Action::Attach]);
    test.on(PAGES, &[Action::MapPages]);
    test.on(Event::Mapped(true), &[Action::Start]);
    let line = log("no thread can be created: this process computes without limits");
    let expected = [line, Action::Shutdown, Action::Return(true)];
    test.on(Event::Started(false), &expected);
    assert_eq!(test.link.phase(), Phase::Off);
}

#[test]
fn a_second_initialisation_changes_nothing() {
    let mut test = Test::attached(OnLoss::Open);
    test.on(Event::Begin { has_socket: true }, &[Action::Return(true)]);
    let again = Event::Initialised { is_connected: true };
    test.on(again, &[Action::Return(true)]);
}

#[test]
fn messages_of_the_agent_are_carried_out() {
    let mut test = Test::attached(OnLoss::Open);
    test.on(Event::Nothing, &[Action::Receive]);
    test.on(
        Event::Message(FromAgent::Probe),
        &[Action::Send(FromProcess::Present), Action::Receive],
    );
    test.on(
        Event::Message(FromAgent::Relinquish),
        &[Action::Relinquish, Action::Receive],
    );
    test.on(Event::Message(FromAgent::Pages), &[Action::Receive]);
    let no_longer = FromAgent::Refused {
        reason: Refusal::SlotLost,
        text: "gone".to_owned(),
    };
    let line = log("the agent no longer serves this process: gone");
    test.on(Event::Message(no_longer), &[line, Action::Receive]);
}

#[test]
fn the_gate_opens_100_ms_after_the_agent_is_gone_and_the_time_is_counted() {
    let mut test = Test::attached(OnLoss::Open);
    test.on(Event::Closed(IDLE), &[Action::Connect]);
    assert!(test.link.is_lost());
    let retry = [Action::Shutdown, Action::Pause(RETRY_INTERVAL)];
    test.on(NOBODY, &retry);
    for _ in 0..19 {
        test.after(5, Event::Elapsed(IDLE), &[Action::Connect]);
        test.on(NOBODY, &retry);
    }
    let open = |ms: u64| {
        [
            Action::Shutdown,
            Action::UseOpenOrders,
            Action::CountUngated(ms * MS),
            Action::Pause(SEARCH_INTERVAL),
        ]
    };
    test.after(5, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(NOBODY, &open(0));
    test.after(100, Event::Elapsed(COMPUTES), &[Action::Connect]);
    test.on(NOBODY, &open(100));
    test.after(103, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(NOBODY, &open(103));
    // It has computed since, so its successor hears of an open gate.
    test.after(100, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(CONNECTED, &[hello(true, true)]);
}

#[test]
fn a_gate_that_is_to_be_kept_stays_as_it_is_and_the_agent_is_searched() {
    let mut test = Test::attached(OnLoss::Keep);
    test.on(Event::Closed(IDLE), &[Action::Connect]);
    test.on(NOBODY, &[Action::Shutdown, Action::Pause(RETRY_INTERVAL)]);
    test.after(99, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(NOBODY, &[Action::Shutdown, Action::Pause(RETRY_INTERVAL)]);
    test.after(5, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(NOBODY, &[Action::Shutdown, Action::Pause(SEARCH_INTERVAL)]);
}

#[test]
fn a_successor_that_serves_ends_the_loss() {
    let mut test = Test::attached(OnLoss::Open);
    test.on(Event::Closed(COMPUTES), &[Action::Connect]);
    test.on(CONNECTED, &[hello(true, true)]);
    let limits = Action::Limits(terms(OnLoss::Open));
    test.on(welcome(OnLoss::Open), &[limits, Action::Attach]);
    test.on(PAGES, &[Action::MapPages]);
    assert!(test.link.is_lost());
    let expected = [Action::Relinquish, Action::Receive];
    test.on(Event::Mapped(true), &expected);
    assert!(!test.link.is_lost());
}

#[test]
fn the_time_until_a_successor_serves_is_counted() {
    let mut test = Test::attached(OnLoss::Open);
    test.on(Event::Closed(IDLE), &[Action::Connect]);
    test.on(NOBODY, &[Action::Shutdown, Action::Pause(RETRY_INTERVAL)]);
    test.after(100, Event::Elapsed(IDLE), &[Action::Connect]);
    test.link.handle(test.now * MS, NOBODY);
    while test.link.poll().is_some() {}
    test.after(70, Event::Elapsed(COMPUTES), &[Action::Connect]);
    test.on(CONNECTED, &[hello(true, true)]);
    let limits = Action::Limits(terms(OnLoss::Open));
    test.after(3, welcome(OnLoss::Open), &[limits, Action::Attach]);
    test.after(2, PAGES, &[Action::MapPages]);
    let expected = [
        Action::CountUngated(75 * MS),
        Action::Relinquish,
        Action::Receive,
    ];
    test.on(Event::Mapped(true), &expected);
}

#[test]
fn the_terms_of_the_last_welcome_apply() {
    let mut test = Test::attached(OnLoss::Open);
    test.on(Event::Closed(IDLE), &[Action::Connect]);
    test.on(CONNECTED, &[hello(true, false)]);
    let limits = Action::Limits(terms(OnLoss::Keep));
    test.on(welcome(OnLoss::Keep), &[limits, Action::Attach]);
    test.on(PAGES, &[Action::MapPages]);
    test.on(Event::Mapped(true), &[Action::Relinquish, Action::Receive]);
    test.on(Event::Closed(IDLE), &[Action::Connect]);
    let retry = [Action::Shutdown, Action::Pause(RETRY_INTERVAL)];
    test.on(NOBODY, &retry);
    test.after(500, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(NOBODY, &[Action::Shutdown, Action::Pause(SEARCH_INTERVAL)]);
}

#[test]
fn an_agent_that_does_not_serve_yet_closes_the_gate() {
    let mut test = Test::attached(OnLoss::Open);
    test.on(Event::Closed(COMPUTES), &[Action::Connect]);
    let closed = |interval| {
        [
            Action::Shutdown,
            Action::UseClosedOrders,
            Action::Pause(interval),
        ]
    };
    let silent: Vec<Action> = [log(SILENT)]
        .into_iter()
        .chain(closed(SEARCH_INTERVAL))
        .collect();
    test.on(BUSY, &silent);
    test.after(100, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(CONNECTED, &[hello(true, true)]);
    let refusal: Vec<Action> = [log("the agent refuses this process: full")]
        .into_iter()
        .chain(closed(REFUSED_INTERVAL))
        .collect();
    test.on(refused("full"), &refusal);
    // The same reason is logged once.
    test.after(1_000, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(CONNECTED, &[hello(true, true)]);
    test.on(refused("full"), &closed(REFUSED_INTERVAL));
}

#[test]
fn the_time_until_an_open_gate_closes_again_is_counted() {
    let mut test = Test::attached(OnLoss::Open);
    test.on(Event::Closed(IDLE), &[Action::Connect]);
    test.on(NOBODY, &[Action::Shutdown, Action::Pause(RETRY_INTERVAL)]);
    test.after(100, Event::Elapsed(IDLE), &[Action::Connect]);
    test.link.handle(test.now * MS, NOBODY);
    while test.link.poll().is_some() {}
    test.after(40, Event::Elapsed(IDLE), &[Action::Connect]);
    let expected = [
        log(SILENT),
        Action::Shutdown,
        Action::CountUngated(40 * MS),
        Action::UseClosedOrders,
        Action::Pause(SEARCH_INTERVAL),
    ];
    test.on(BUSY, &expected);
    // The gate is closed: nothing more is counted.
    test.after(40, Event::Elapsed(IDLE), &[Action::Connect]);
    let expected = [
        Action::Shutdown,
        Action::UseClosedOrders,
        Action::Pause(SEARCH_INTERVAL),
    ];
    test.on(BUSY, &expected);
}

#[test]
fn a_hung_agent_opens_the_gate_at_once_and_until_it_serves() {
    let mut test = Test::attached(OnLoss::Open);
    let open = |ms: u64| {
        [
            Action::Shutdown,
            Action::UseOpenOrders,
            Action::CountUngated(ms * MS),
            Action::Pause(SEARCH_INTERVAL),
        ]
    };
    test.on(Event::Closed(HUNG), &open(0));
    // It accepts connections but does not answer: the gate stays open.
    test.after(100, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(CONNECTED, &[hello(true, false)]);
    test.after(2_000, Event::Reply(None), &open(2_100));
    test.after(100, Event::Elapsed(COMPUTES), &[Action::Connect]);
    test.on(BUSY, &[vec![log(SILENT)], open(100).to_vec()].concat());
    test.after(100, Event::Elapsed(IDLE), &[Action::Connect]);
    test.on(CONNECTED, &[hello(true, true)]);
}

#[test]
fn pages_that_cannot_be_mapped_are_a_lost_connection() {
    let mut test = Test::attached(OnLoss::Open);
    test.on(Event::Closed(IDLE), &[Action::Connect]);
    test.on(CONNECTED, &[hello(true, false)]);
    let limits = Action::Limits(terms(OnLoss::Open));
    test.on(welcome(OnLoss::Open), &[limits, Action::Attach]);
    test.on(PAGES, &[Action::MapPages]);
    let expected = [
        log(SILENT),
        Action::Shutdown,
        Action::UseClosedOrders,
        Action::Pause(SEARCH_INTERVAL),
    ];
    test.on(Event::Mapped(false), &expected);
    assert!(test.link.is_lost());
}

#[test]
fn a_forked_child_connects_only_if_the_parent_had_not() {
    let mut test = Test::new();
    test.link.fork();
    assert_eq!(test.link.phase(), Phase::New);
    let mut test = Test::attached(OnLoss::Open);
    test.link.fork();
    assert_eq!(test.link.phase(), Phase::Off);
    test.on(Event::Begin { has_socket: true }, &[Action::Return(true)]);
}

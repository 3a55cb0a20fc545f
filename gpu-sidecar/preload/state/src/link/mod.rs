//! The process with respect to its node's agent.
//!
//! Without a socket Weir is not installed, and everything passes to the driver unchanged. If the socket is missing or refuses
//! connections later, or the agent's heartbeat stops, the gate opens after [`OPENS_AFTER`], the time is counted
//! (invariant 6), and connecting is retried as long as the process lives. An agent that accepts connections but does not answer
//! yet, because other processes overload it, is waited for.
//!
//! [`Link`] decides; its owner connects, sends, waits and maps. It calls [`Link::handle`] with each [`Event`], then carries out the
//! actions from [`Link::poll`] in order. The last one names the next event:
//!
//! | last action | next event |
//! |---|---|
//! | [`Action::Connect`] | [`Event::Connect`] |
//! | [`Action::Hello`], [`Action::Attach`] | [`Event::Reply`] |
//! | [`Action::MapPages`] | [`Event::Mapped`] |
//! | [`Action::Start`] | [`Event::Started`] |
//! | [`Action::Receive`] | [`Event::Message`], [`Event::Nothing`] or [`Event::Closed`] |
//! | [`Action::Pause`] | [`Event::Elapsed`] |
//! | [`Action::Return`] | [`Event::Begin`], [`Event::Initialised`] or [`Event::Run`] |
//!
//! The first half of its life, to [`Phase::Attached`], passes in the program's `cuInit`, the second in a thread that begins with
//! [`Event::Run`].

use std::borrow::Cow;
use std::collections::VecDeque;

use protocol::message::{FromAgent, FromProcess, OnLoss};

mod event;
mod loss;
mod status;
mod terms;
#[cfg(test)]
mod tests;

pub use event::{
    ANSWER_MAX, Action, Activity, ConnectOutcome, Event, OPENS_AFTER, Phase, REFUSED_INTERVAL,
    RETRY_INTERVAL, SEARCH_INTERVAL,
};
use loss::{Absence, Attempt, LinkError, Loss};
pub use status::Status;
pub use terms::Terms;

/// Process with respect to its agent; see the [module](self).
#[derive(Debug, Clone)]
pub struct Link {
    phase: Phase,
    on_loss: OnLoss,
    /// Reason that the agent gave for its last refusal.
    refusal: String,
    /// What the next reply answers.
    awaits: Awaited,
    /// Time without an agent before the driver is initialised.
    absence: Absence,
    /// Loss of the connection; `None` while an agent serves the process.
    loss: Option<Loss>,
    actions: VecDeque<Action>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    Welcome,
    Pages,
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// Creates the link of a process that has not initialised the driver.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            phase: Phase::New,
            on_loss: OnLoss::Open,
            refusal: String::new(),
            awaits: Awaited::Welcome,
            absence: Absence::new(),
            loss: None,
            actions: VecDeque::new(),
        }
    }

    /// Returns the state of the process with respect to the agent.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns whether there is no connection, or a new one is not served yet, so that the page in use has no heartbeat. Meaningful
    /// once the thread of the link runs.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        self.loss.is_some()
    }

    /// Turns Weir off in the child of a fork, unless the driver has not been initialised yet: the child then connects by itself.
    pub fn fork(&mut self) {
        if self.phase != Phase::New {
            self.phase = Phase::Off;
        }
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Handles an event at `now`.
    pub fn handle(&mut self, now: u64, event: Event) {
        match event {
            Event::Begin { has_socket } => self.begin(has_socket),
            Event::Initialised { is_connected } => self.initialised(is_connected),
            Event::Run {
                is_connected: true, ..
            }
            | Event::Nothing => self.act(Action::Receive),
            Event::Run { activity, .. } | Event::Closed(activity) => {
                self.loss = Some(Loss::default());
                self.attempt(now, activity);
            }
            Event::Elapsed(activity) => self.attempt(now, activity),
            Event::Connect(outcome) => self.connect(now, outcome),
            Event::Reply(reply) => self.reply(now, reply),
            Event::Mapped(is_mapped) => self.mapped(now, is_mapped),
            Event::Started(is_started) => self.started(is_started),
            Event::Message(message) => self.message(message),
        }
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn log(&mut self, line: impl Into<Cow<'static, str>>) {
        self.act(Action::Log(line.into()));
    }

    fn begin(&mut self, has_socket: bool) {
        if self.phase == Phase::New && has_socket {
            self.act(Action::Connect);
            return;
        }
        if self.phase == Phase::New {
            self.phase = Phase::Off;
        }
        let is_refused = self.phase == Phase::Refused;
        self.act(Action::Return(!is_refused));
    }

    fn initialised(&mut self, is_connected: bool) {
        if self.phase != Phase::Ready {
            self.act(Action::Return(true));
        } else if is_connected {
            self.request(Awaited::Pages, Action::Attach);
        } else {
            self.act(Action::Start);
        }
    }

    fn request(&mut self, awaits: Awaited, action: Action) {
        self.awaits = awaits;
        self.act(action);
    }

    /// Begins an attempt to reach the agent.
    fn attempt(&mut self, now: u64, activity: Activity) {
        let Some(loss) = &mut self.loss else {
            self.act(Action::Connect);
            return;
        };
        loss.is_hung |= activity.is_hung;
        // A hung agent may still accept connections without answering, so the gate is opened before the next attempt.
        if activity.is_hung {
            self.conclude(now, Attempt::Silent);
        } else {
            loss.computes |= activity.computes;
            self.act(Action::Connect);
        }
    }

    fn connect(&mut self, now: u64, outcome: ConnectOutcome) {
        let (again, open) = self
            .loss
            .as_ref()
            .map_or((false, false), |loss| (true, loss.computes));
        match outcome {
            ConnectOutcome::Connected => {
                self.request(Awaited::Welcome, Action::Hello { again, open });
            }
            ConnectOutcome::Busy => {
                let line = self.absence().end();
                self.actions.extend(line);
                self.retry(now, Attempt::Silent);
            }
            ConnectOutcome::NoAgent => {
                self.absence().extend(now);
                self.retry(now, Attempt::NoAgent);
            }
        }
    }

    const fn absence(&mut self) -> &mut Absence {
        match &mut self.loss {
            Some(loss) => &mut loss.absence,
            None => &mut self.absence,
        }
    }

    /// Ends a failed attempt.
    fn retry(&mut self, now: u64, attempt: Attempt) {
        if self.loss.is_some() {
            self.conclude(now, attempt);
        } else if attempt == Attempt::NoAgent && self.absence.has_lasted(now, OPENS_AFTER) {
            self.log("no agent answers: this process computes without limits until one does");
            self.phase = Phase::Ready;
            self.act(Action::Return(true));
        } else {
            self.act(Action::Pause(RETRY_INTERVAL));
        }
    }

    fn reply(&mut self, now: u64, reply: Option<FromAgent>) {
        let reply = match reply {
            Some(FromAgent::Refused { text, .. }) => {
                if self.refusal != text {
                    self.log(format!("the agent refuses this process: {text}"));
                    self.refusal = text;
                }
                return self.fail(now, LinkError::Refused);
            }
            Some(reply) => reply,
            None => return self.fail(now, LinkError::Lost),
        };
        match self.awaits {
            Awaited::Welcome => match Terms::of(reply) {
                Some(terms) => self.welcome(terms),
                None => self.fail(now, LinkError::Lost),
            },
            Awaited::Pages if reply == FromAgent::Pages => self.act(Action::MapPages),
            Awaited::Pages => self.fail(now, LinkError::Lost),
        }
    }

    fn welcome(&mut self, terms: Terms) {
        self.on_loss = terms.on_loss;
        self.act(Action::Limits(terms.clone()));
        if self.loss.is_some() {
            self.request(Awaited::Pages, Action::Attach);
        } else {
            self.act(Action::SetEnvironment(terms));
            self.phase = Phase::Ready;
            self.act(Action::Return(true));
        }
    }

    fn mapped(&mut self, now: u64, is_mapped: bool) {
        if !is_mapped {
            self.fail(now, LinkError::Lost);
        } else if let Some(loss) = self.loss.take() {
            // The gate was open up to the change of page.
            if let Some(from) = loss.counted_to {
                self.act(Action::CountUngated(now.saturating_sub(from)));
            }
            // The account may rely on more than the new page grants.
            self.act(Action::Relinquish);
            self.act(Action::Receive);
        } else {
            self.act(Action::Start);
        }
    }

    fn started(&mut self, is_started: bool) {
        self.phase = Phase::Attached;
        if !is_started {
            // Without these threads no token would be returned and no loss of the agent noticed.
            self.phase = Phase::Off;
            self.log("no thread can be created: this process computes without limits");
            self.act(Action::Shutdown);
        }
        self.act(Action::Return(true));
    }

    fn message(&mut self, message: FromAgent) {
        match message {
            FromAgent::Refused { text, .. } => {
                self.log(format!("the agent no longer serves this process: {text}"));
            }
            FromAgent::Relinquish => self.act(Action::Relinquish),
            FromAgent::Probe => self.act(Action::Send(FromProcess::Present)),
            // The agent sends no other message unrequested.
            _ => {}
        }
        self.act(Action::Receive);
    }

    /// Ends an attempt over a connection that was accepted.
    fn fail(&mut self, now: u64, error: LinkError) {
        if let Some(loss) = &mut self.loss {
            if loss.is_hung {
                return self.conclude(now, Attempt::Silent);
            }
            let line = loss.absence.end();
            self.actions.extend(line);
            return self.conclude(
                now,
                match error {
                    LinkError::Refused => Attempt::Refused,
                    LinkError::Lost => Attempt::Silent,
                },
            );
        }
        match (self.phase, error) {
            (_, LinkError::Refused) => {
                self.phase = Phase::Refused;
                self.act(Action::Return(false));
            }
            (Phase::Ready, LinkError::Lost) => {
                self.act(Action::Shutdown);
                self.act(Action::UseClosedOrders);
                self.act(Action::Start);
            }
            (_, LinkError::Lost) => {
                self.act(Action::Shutdown);
                // A connection that was accepted, or is queued, belongs to a running agent; only the socket shows that it has
                // stopped.
                let line = self.absence.end();
                self.actions.extend(line);
                self.act(Action::Pause(RETRY_INTERVAL));
            }
        }
    }

    /// Ends a failed attempt after a loss: opens or closes the gate, and pauses.
    fn conclude(&mut self, now: u64, attempt: Attempt) {
        self.act(Action::Shutdown);
        let Some(loss) = &mut self.loss else {
            return;
        };
        let is_gone = loss.is_hung || loss.absence.has_lasted(now, OPENS_AFTER);
        if is_gone {
            // Unless the terms keep the gate as it is.
            if self.on_loss != OnLoss::Keep {
                let from = loss.counted_to.replace(now).unwrap_or(now);
                self.act(Action::UseOpenOrders);
                self.act(Action::CountUngated(now.saturating_sub(from)));
            }
        } else if attempt != Attempt::NoAgent {
            // An agent is running but does not serve this process yet.
            let counted_to = loss.counted_to.take();
            if let Some(from) = counted_to {
                self.act(Action::CountUngated(now.saturating_sub(from)));
            }
            self.act(Action::UseClosedOrders);
        }
        self.act(Action::Pause(match attempt {
            Attempt::Refused => REFUSED_INTERVAL,
            Attempt::Silent => SEARCH_INTERVAL,
            Attempt::NoAgent if is_gone => SEARCH_INTERVAL,
            Attempt::NoAgent => RETRY_INTERVAL,
        }));
    }
}

//! Exhaustive check of the gate: every interleaving of two launching threads, a thread that returns the token, the watch thread and the
//! agent, in steps of one atomic operation or one critical section.
//!
//! A plain store becomes visible to others at any time after it is made, in the order of its thread, or at a barrier over all threads
//! (`membarrier`); nothing else makes it visible. The epoch is read before or after the launch is announced in the word. That covers
//! what a processor may do with the accesses of a launch, which are its only unfenced ones; loom has no such barrier.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::page::Orders;

use super::state::{Gate, GiveBack, Returned, Token};
use super::word::Word;

/// Deviations from the gate, each of which the check has to notice.
#[derive(Clone, Copy, Default)]
struct Fault {
    /// No barrier is run before launches in progress are looked for.
    no_barrier: bool,
    /// A thread waits although the return of the token may yet be undone.
    waits_while_returning: bool,
    /// A thread opens a shut word for the epoch that it read earlier.
    opens_for_stale_epoch: bool,
    /// The watch thread takes a return that may yet be undone for an answer.
    trusts_unfinished_return: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Mark,
    Check,
    Launch,
    Withdraw,
    Unmark,
    Rejected,
    ReadEpoch,
    Token,
    Open,
    Request,
    Wait,
    Waiting,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Launcher {
    at: At,
    launches: u8,
    /// The mark as others see it, and stores that they do not see yet.
    mark: bool,
    stores: VecDeque<bool>,
    gate_open: Option<bool>,
    is_announced: bool,
    is_shut: Option<bool>,
    epoch: u64,
    running: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Returner {
    Idle,
    Barrier(u64),
    Look(u64),
    Finish(u64, bool),
    Closed(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Drain {
    Idle,
    Barrier(u64),
    Launches(u64),
    Work(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Message {
    Ask(u64),
    Closed(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Agent {
    Open,
    Closing,
    Closed,
    Enqueued,
    Waking,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// Word, returned epoch, whether its return is finished, requested epoch.
    gate: (u64, u64, bool, u64),
    epoch: u64,
    launchers: [Launcher; 2],
    returner: Returner,
    returns: u8,
    drain: Drain,
    answered: u64,
    agent: Agent,
    again: bool,
    closes: u8,
    messages: VecDeque<Message>,
    /// Whether the process may compute: from a grant until `Closed` is sent.
    holds: bool,
}

impl State {
    /// Creates the first state: threads with these numbers of launches, and numbers of returns and closures that are tried.
    fn new([first, second]: [u8; 2], returns: u8, closes: u8) -> Self {
        let launcher = |launches| Launcher {
            at: if launches > 0 { At::Mark } else { At::Done },
            launches,
            mark: false,
            stores: VecDeque::new(),
            gate_open: None,
            is_announced: false,
            is_shut: None,
            epoch: 0,
            running: 0,
        };
        Self {
            gate: (0, 0, false, 0),
            epoch: 2,
            launchers: [launcher(first), launcher(second)],
            returner: Returner::Idle,
            returns,
            drain: Drain::Idle,
            answered: 1,
            agent: Agent::Open,
            again: false,
            closes,
            messages: VecDeque::new(),
            holds: true,
        }
    }

    /// Runs a method of the gate on its present state.
    fn on_gate<T>(&mut self, f: impl FnOnce(&Gate, &Orders) -> T) -> T {
        let (word, epoch, is_finished, requested) = self.gate;
        let orders = Orders::new();
        orders.gate.set(self.epoch);
        let gate = Gate {
            word: Word::at(word),
            returned: Mutex::new(Returned { epoch, is_finished }),
            requested: AtomicU64::new(requested),
            ..Gate::new()
        };
        let result = f(&gate, &orders);
        let returned = *gate.returned();
        self.gate = (
            gate.word.value(),
            returned.epoch,
            returned.is_finished,
            gate.requested.load(Ordering::Relaxed),
        );
        result
    }

    /// Makes all stores of the launching threads visible.
    fn barrier(&mut self, fault: Fault) {
        if !fault.no_barrier {
            for launcher in &mut self.launchers {
                while let Some(store) = launcher.stores.pop_front() {
                    launcher.mark = store;
                }
            }
        }
    }

    fn any_launching(&self) -> bool {
        self.launchers.iter().any(|launcher| launcher.mark)
    }

    fn send_closed(&mut self, epoch: u64) -> Result<(), &'static str> {
        let is_launching =
            |one: &Launcher| matches!(one.at, At::Launch | At::Unmark) || one.running > 0;
        // An answer to an epoch that is over is ignored.
        if epoch == self.epoch || epoch + 1 == self.epoch {
            if self.holds && self.launchers.iter().any(is_launching) {
                return Err("a launch is in progress while the gate is reported as closed");
            }
            self.holds = false;
        }
        self.messages.push_back(Message::Closed(epoch));
        Ok(())
    }

    /// Returns all states after one step of a launching thread.
    fn launch(&self, which: usize, fault: Fault, next: &mut Vec<Self>) -> Result<(), &'static str> {
        let own = &self.launchers[which];
        let mut step = |at: At, change: &dyn Fn(&mut Self)| {
            let mut after = self.clone();
            after.launchers[which].at = at;
            change(&mut after);
            next.push(after);
        };
        match own.at {
            // The buffer of stores is finite.
            At::Mark if own.stores.len() > 1 => {}
            At::Mark => step(At::Check, &|after| {
                let own = &mut after.launchers[which];
                own.stores.push_back(true);
                (own.gate_open, own.is_announced, own.is_shut) = (None, false, None);
            }),
            At::Check => match (own.gate_open, own.is_shut) {
                (Some(true), Some(false)) => step(At::Launch, &|_| {}),
                (Some(_), Some(_)) => step(At::Withdraw, &|_| {}),
                (gate_open, is_shut) => {
                    if gate_open.is_none() {
                        let is_open = self.epoch & 1 == 0;
                        step(At::Check, &|after| {
                            after.launchers[which].gate_open = Some(is_open);
                        });
                    }
                    if !own.is_announced {
                        step(At::Check, &|after| {
                            let _before = after.on_gate(|gate, _| gate.announce(1));
                            after.launchers[which].is_announced = true;
                        });
                    } else if is_shut.is_none() {
                        step(At::Check, &|after| {
                            let is_shut = after.on_gate(|gate, _| gate.word.is_shut());
                            after.launchers[which].is_shut = Some(is_shut);
                        });
                    }
                }
            },
            At::Launch if !self.holds => return Err("a launch passes a gate that is closed"),
            At::Launch => step(At::Unmark, &|after| after.launchers[which].running += 1),
            At::Withdraw => step(At::Rejected, &|after| {
                after.on_gate(|gate, _| gate.word.subtract(1));
            }),
            At::Unmark | At::Rejected => {
                let left = own.launches - u8::from(own.at == At::Unmark);
                let at = match own.at {
                    At::Rejected => At::ReadEpoch,
                    _ if left > 0 => At::Mark,
                    _ => At::Done,
                };
                step(at, &|after| {
                    let own = &mut after.launchers[which];
                    own.launches = left;
                    own.stores.push_back(false);
                });
            }
            At::ReadEpoch => step(At::Token, &|after| {
                after.launchers[which].epoch = after.epoch;
            }),
            At::Token => self.token(which, fault, next),
            At::Open => step(At::ReadEpoch, &|after| {
                after.on_gate(|gate, _| gate.word.open());
            }),
            At::Request => {
                let epoch = own.epoch;
                step(At::Wait, &|after| {
                    if after.on_gate(|gate, _| gate.request(epoch)) {
                        after.messages.push_back(Message::Ask(epoch));
                    }
                });
            }
            // The kernel compares and sleeps in one step.
            At::Wait if own.epoch == self.epoch => step(At::Waiting, &|_| {}),
            At::Wait => step(At::ReadEpoch, &|_| {}),
            At::Waiting | At::Done => {}
        }
        Ok(())
    }

    fn token(&self, which: usize, fault: Fault, next: &mut Vec<Self>) {
        let mut after = self.clone();
        let epoch = self.launchers[which].epoch;
        let is_shut = after.on_gate(|gate, _| gate.word.is_shut());
        let token = if fault.opens_for_stale_epoch && is_shut && self.gate.2 {
            let is_new = epoch & 1 == 0 && epoch > self.gate.1;
            if is_new {
                Token::Taken
            } else {
                Token::Returned
            }
        } else {
            after.on_gate(Gate::token)
        };
        after.launchers[which].at = match token {
            Token::Taken if fault.opens_for_stale_epoch => At::Open,
            Token::Taken => At::ReadEpoch,
            Token::Returning if !fault.waits_while_returning => At::ReadEpoch,
            Token::Held if epoch & 1 == 0 => At::Mark,
            Token::Held | Token::Returning | Token::Returned => At::Request,
        };
        next.push(after);
    }

    fn return_token(&self, fault: Fault, next: &mut Vec<Self>) -> Result<(), &'static str> {
        let mut after = self.clone();
        after.returner = match self.returner {
            Returner::Idle if self.returns == 0 => return Ok(()),
            Returner::Idle => {
                after.returns -= 1;
                match after.on_gate(Gate::begin_give_back) {
                    Some(begun) => Returner::Barrier(begun.epoch),
                    None => Returner::Idle,
                }
            }
            Returner::Barrier(epoch) => {
                after.barrier(fault);
                Returner::Look(epoch)
            }
            Returner::Look(epoch) => Returner::Finish(epoch, self.any_launching()),
            Returner::Finish(epoch, any_launching) => {
                let begun = GiveBack { epoch };
                match after.on_gate(|gate, _| gate.finish_give_back(begun, any_launching)) {
                    Some(epoch) => Returner::Closed(epoch),
                    None => Returner::Idle,
                }
            }
            Returner::Closed(epoch) => {
                after.send_closed(epoch)?;
                Returner::Idle
            }
        };
        next.push(after);
        Ok(())
    }

    fn drain(&self, fault: Fault, next: &mut Vec<Self>) -> Result<(), &'static str> {
        let mut after = self.clone();
        after.drain = match self.drain {
            Drain::Idle if self.epoch & 1 == 1 && self.answered != self.epoch => {
                after.answered = self.epoch;
                let mut was_returned = after.on_gate(|gate, _| gate.was_given_back(self.epoch - 1));
                if fault.trusts_unfinished_return {
                    was_returned = after.on_gate(|gate, _| gate.word.is_shut());
                }
                if was_returned {
                    Drain::Idle
                } else {
                    Drain::Barrier(self.epoch - 1)
                }
            }
            Drain::Barrier(epoch) => {
                after.barrier(fault);
                Drain::Launches(epoch)
            }
            Drain::Launches(epoch) if !self.any_launching() => Drain::Work(epoch),
            Drain::Work(epoch) if after.on_gate(|gate, _| gate.word.in_flight()) == 0 => {
                after.send_closed(epoch)?;
                Drain::Idle
            }
            _ => return Ok(()),
        };
        next.push(after);
        Ok(())
    }

    /// The agent's rules for requests and returns.
    fn agent(&self, next: &mut Vec<Self>) {
        // The agent sets the epoch and wakes the waiters before it reads the next message.
        if !self.messages.is_empty() && self.agent != Agent::Waking {
            let mut after = self.clone();
            match (after.messages.pop_front(), self.agent) {
                (Some(Message::Ask(epoch)), Agent::Open) => {
                    after.again |= epoch == self.epoch;
                }
                (Some(Message::Ask(_)), Agent::Closing) => after.again = true,
                (Some(Message::Ask(_)), Agent::Closed) => after.agent = Agent::Enqueued,
                (Some(Message::Closed(epoch)), state) => {
                    let is_current = state == Agent::Open && epoch == self.epoch
                        || state == Agent::Closing && epoch + 1 == self.epoch;
                    if is_current {
                        after.epoch |= 1;
                        let again = std::mem::take(&mut after.again);
                        after.agent = if again {
                            Agent::Enqueued
                        } else {
                            Agent::Closed
                        };
                    }
                }
                _ => {}
            }
            next.push(after);
        }
        let mut after = self.clone();
        match self.agent {
            Agent::Open if self.closes > 0 => {
                after.closes -= 1;
                after.epoch += 1;
                after.agent = Agent::Closing;
            }
            Agent::Enqueued => {
                after.epoch += 1;
                after.holds = true;
                after.agent = Agent::Waking;
            }
            Agent::Waking => {
                for launcher in &mut after.launchers {
                    if launcher.at == At::Waiting {
                        launcher.at = At::ReadEpoch;
                    }
                }
                after.agent = Agent::Open;
            }
            _ => return,
        }
        next.push(after);
    }

    /// Returns all states after one step. Fails if a launch escapes, or a thread waits that nothing will wake.
    fn next(&self, fault: Fault) -> Result<Vec<Self>, &'static str> {
        let mut next = Vec::new();
        for which in 0..self.launchers.len() {
            self.launch(which, fault, &mut next)?;
            if self.launchers[which].running > 0 {
                let mut after = self.clone();
                after.on_gate(|gate, _| gate.word.subtract(1));
                after.launchers[which].running -= 1;
                next.push(after);
            }
        }
        self.return_token(fault, &mut next)?;
        self.drain(fault, &mut next)?;
        self.agent(&mut next);
        let is_over = next.is_empty();
        for which in 0..self.launchers.len() {
            let mut after = self.clone();
            if let Some(store) = after.launchers[which].stores.pop_front() {
                after.launchers[which].mark = store;
                next.push(after);
            }
        }
        let all_done = self.launchers.iter().all(|own| own.at == At::Done);
        if is_over && next.is_empty() && !all_done {
            return Err("a thread waits that nothing will wake");
        }
        Ok(next)
    }
}

/// Visits every state that can be reached. Returns their number.
fn explore(first: State, fault: Fault) -> Result<usize, &'static str> {
    crate::explore::explore(first, |state| state.next(fault))
}

/// Checks one thread with several tokens, and two threads with one token each, in all interleavings.
fn check(fault: Fault) -> Result<usize, &'static str> {
    let one = explore(State::new([2, 0], 2, 1), fault)?;
    let two = explore(State::new([1, 1], 1, 0), fault)?;
    Ok(one + two)
}

#[test]
fn no_launch_escapes_a_shut_gate_and_no_wake_up_is_lost() {
    let states = check(Fault::default()).expect("the gate is correct");
    assert!(states > 100_000, "{states}");
}

#[test]
fn without_a_barrier_a_launch_escapes() {
    let fault = Fault {
        no_barrier: true,
        ..Fault::default()
    };
    assert!(check(fault).unwrap_err().contains("launch"));
}

#[test]
fn a_word_that_is_opened_for_a_stale_epoch_lets_a_launch_escape() {
    let fault = Fault {
        opens_for_stale_epoch: true,
        ..Fault::default()
    };
    let first = State::new([1, 1], 2, 0);
    assert!(explore(first, fault).unwrap_err().contains("launch"));
}

#[test]
fn a_wait_during_a_return_that_is_undone_is_never_woken() {
    let fault = Fault {
        waits_while_returning: true,
        ..Fault::default()
    };
    assert!(check(fault).unwrap_err().contains("waits"));
}

#[test]
fn an_unfinished_return_taken_for_an_answer_leaves_the_agent_without_one() {
    let fault = Fault {
        trusts_unfinished_return: true,
        ..Fault::default()
    };
    assert!(check(fault).unwrap_err().contains("waits"));
}

//! Copies between the device and windows of host memory (M2.5). Those to and from windows that are not registered with the driver pass through registered
//! staging memory, in pieces, which threads of this library copy while others are on their way: the driver's own staging of such memory is done by one
//! thread, at a fraction of the link's rate.

use std::collections::VecDeque;

use preload_state::memory::{HostMemory, HostSpan};

use super::Tools;
use crate::cuda::{Address, Code, EVENT_BLOCKING_SYNC, Handle, INVALID_CONTEXT, NOT_READY};
use crate::platform::Platform;

/// Number of pieces of the staging memory.
pub const PIECES: usize = 8;

/// Piece of the staging memory.
#[derive(Debug, Clone, Copy)]
enum Piece {
    Free,
    /// What is to go to the device is being copied into it.
    Filling,
    /// It is being copied to the device, up to this event.
    ToDevice(OwnEvent),
    /// It is being copied from the device, up to this event, for this part of a window.
    FromDevice(OwnEvent, HostSpan),
    /// It is being copied into a window.
    Emptying,
}

/// An event of the staging memory, and the context in which it was created.
#[derive(Debug, Clone, Copy)]
struct OwnEvent {
    context: Handle,
    event: Handle,
}

/// Registered memory in pieces, which are used in turn.
#[derive(Debug)]
struct Ring {
    memory: HostSpan,
    /// Size of a piece, in bytes.
    bytes: u64,
    pieces: [Piece; PIECES],
    /// Number of uses so far.
    used: u64,
    /// Contexts for which there are events, one for each piece, and those that are not in use.
    contexts: Vec<Handle>,
    events: Vec<OwnEvent>,
}

impl Ring {
    /// Returns the ring in staging memory; `None` without any.
    fn of(host: &HostMemory) -> Option<Self> {
        let memory = host.staging()?;
        Some(Self {
            memory,
            bytes: memory.bytes / PIECES as u64,
            pieces: [Piece::Free; PIECES],
            used: 0,
            contexts: Vec::new(),
            events: Vec::new(),
        })
    }

    /// Creates the events for copies in a context, which is current, unless there are some.
    fn prepare<P: Platform>(&mut self, host: P, context: Handle) -> Result<(), Code> {
        if self.contexts.contains(&context) {
            return Ok(());
        }
        for _ in 0..PIECES {
            let event = host.create_event(EVENT_BLOCKING_SYNC)?;
            self.events.push(OwnEvent { context, event });
        }
        self.contexts.push(context);
        Ok(())
    }

    /// Takes an event of a context for which there are some.
    fn take_event(&mut self, context: Handle) -> Result<OwnEvent, Code> {
        let own = self.events.iter().position(|own| own.context == context);
        own.map(|at| self.events.swap_remove(at))
            .ok_or(INVALID_CONTEXT)
    }

    /// Returns the memory of a piece, of this size.
    const fn span(&self, number: usize, bytes: u64) -> HostSpan {
        HostSpan {
            at: self.memory.at + number as u64 * self.bytes,
            bytes,
        }
    }

    /// Returns the number of the next piece.
    fn next(&self) -> usize {
        usize::try_from(self.used).unwrap_or(0) % PIECES
    }

    /// Frees a piece once what uses it is over. Returns whether it is free; blocks until it is, if it may, unless it is [`Piece::Filling`].
    fn free<P: Platform>(&mut self, host: P, number: usize, may_block: bool) -> Result<bool, Code> {
        let event = match self.pieces[number] {
            Piece::Free => return Ok(true),
            Piece::Filling => return Ok(false),
            Piece::Emptying => {
                if may_block {
                    host.end_copy(number);
                } else if !host.is_copied(number) {
                    return Ok(false);
                }
                self.pieces[number] = Piece::Free;
                return Ok(true);
            }
            Piece::ToDevice(event) | Piece::FromDevice(event, _) => event,
        };
        let over = match may_block {
            true => host.synchronize_event(event.event),
            false => host.query_event(event.event),
        };
        if over == Err(NOT_READY) {
            return Ok(false);
        }
        self.events.push(event);
        let before = std::mem::replace(&mut self.pieces[number], Piece::Free);
        over?;
        match before {
            Piece::FromDevice(_, to) => {
                host.begin_copy(number, to, self.span(number, to.bytes));
                self.pieces[number] = Piece::Emptying;
                self.free(host, number, may_block)
            }
            _ => Ok(true),
        }
    }

    /// Ends what threads copy, and destroys the events. Nothing may be in flight in the streams.
    fn end<P: Platform>(&mut self, host: P) {
        for (number, piece) in self.pieces.iter_mut().enumerate() {
            match std::mem::replace(piece, Piece::Free) {
                Piece::Free => {}
                Piece::Filling | Piece::Emptying => host.end_copy(number),
                Piece::ToDevice(event) | Piece::FromDevice(event, _) => self.events.push(event),
            }
        }
        for own in self.events.drain(..) {
            host.destroy_event(own.event);
        }
    }
}

/// Part of what copies to the device consist of.
#[derive(Debug, Clone, Copy)]
enum Item {
    /// A copy from a window which is registered, or that the driver itself stages.
    Direct(Address, HostSpan),
    /// A copy that passes through the staging memory, and the number of the piece into which it is being copied.
    Staged(Address, HostSpan, Option<usize>),
    /// An event after all before it.
    Event(Handle),
}

/// Copies to devices, in order.
#[derive(Debug)]
pub(super) struct CopiesIn {
    ring: Option<Ring>,
    /// What is not enqueued yet.
    items: VecDeque<(Tools, Item)>,
    /// Number of the items at the front that have their piece, or need none.
    begun: usize,
    /// All events, and the number of those that are recorded.
    events: Vec<Handle>,
    recorded: usize,
}

impl CopiesIn {
    pub(super) fn new(host: &HostMemory) -> Self {
        Self {
            ring: Ring::of(host),
            items: VecDeque::new(),
            begun: 0,
            events: Vec::new(),
            recorded: 0,
        }
    }

    /// Adds a copy. `is_registered`: the window is.
    pub(super) fn copy<P: Platform>(
        &mut self,
        host: P,
        tools: Tools,
        to: Address,
        from: HostSpan,
        is_registered: bool,
    ) -> Result<(), Code> {
        let Some(ring) = self.ring.as_mut().filter(|_| !is_registered) else {
            self.items.push_back((tools, Item::Direct(to, from)));
            return Ok(());
        };
        host.set_current_context(tools.context)?;
        ring.prepare(host, tools.context)?;
        for (offset, piece) in pieces(from, ring.bytes) {
            let item = Item::Staged(to + offset, piece, None);
            self.items.push_back((tools, item));
        }
        Ok(())
    }

    /// Adds an event after what was added so far. All events are created as they are added: later, when the program may compute already, a working
    /// driver refuses nothing.
    pub(super) fn event<P: Platform>(&mut self, host: P, tools: Tools) -> Result<(), Code> {
        host.set_current_context(tools.context)?;
        let event = host.create_event(EVENT_BLOCKING_SYNC)?;
        self.events.push(event);
        self.items.push_back((tools, Item::Event(event)));
        Ok(())
    }

    /// Enqueues what can be enqueued without waiting.
    pub(super) fn advance<P: Platform>(&mut self, host: P) -> Result<(), Code> {
        while self.step(host, false)? {}
        Ok(())
    }

    /// Blocks until all is enqueued.
    pub(super) fn enqueue_all<P: Platform>(&mut self, host: P) -> Result<(), Code> {
        while self.step(host, true)? {}
        Ok(())
    }

    /// Blocks until an event has passed, by its number in the order of [`Self::event`].
    pub(super) fn wait_for_event<P: Platform>(
        &mut self,
        host: P,
        number: usize,
    ) -> Result<(), Code> {
        while self.recorded <= number {
            if !self.step(host, true)? {
                return Ok(());
            }
        }
        // What follows is copied into the staging memory meanwhile.
        self.advance(host)?;
        host.synchronize_event(self.events[number])
    }

    /// Enqueues the first item. Returns whether there was one, and it did not have to wait if it may not.
    fn step<P: Platform>(&mut self, host: P, may_block: bool) -> Result<bool, Code> {
        self.begin(host)?;
        let Some(&(tools, item)) = self.items.front() else {
            return Ok(false);
        };
        match (item, &mut self.ring) {
            (Item::Event(event), _) => {
                host.set_current_context(tools.context)?;
                host.record_event(event, tools.stream)?;
                self.recorded += 1;
            }
            (Item::Staged(to, from, Some(number)), Some(ring)) => {
                if may_block {
                    host.end_copy(number);
                } else if !host.is_copied(number) {
                    return Ok(false);
                }
                ring.pieces[number] = Piece::Free;
                host.set_current_context(tools.context)?;
                let event = ring.take_event(tools.context)?;
                ring.pieces[number] = Piece::ToDevice(event);
                host.copy_to_device(to, ring.span(number, from.bytes), tools.stream)?;
                host.record_event(event.event, tools.stream)?;
            }
            (Item::Staged(_, _, None), Some(ring)) => {
                // It is the first, so that no piece is being filled.
                let next = ring.next();
                return ring.free(host, next, may_block);
            }
            (Item::Direct(to, from) | Item::Staged(to, from, _), _) => {
                host.set_current_context(tools.context)?;
                host.copy_to_device(to, from, tools.stream)?;
            }
        }
        self.items.pop_front();
        self.begun = self.begun.saturating_sub(1);
        Ok(true)
    }

    /// Has what passes through the staging memory copied into it, as far as there are free pieces.
    fn begin<P: Platform>(&mut self, host: P) -> Result<(), Code> {
        let Some(ring) = &mut self.ring else {
            return Ok(());
        };
        for (_, item) in self.items.iter_mut().skip(self.begun) {
            if let Item::Staged(_, from, piece) = item {
                let number = ring.next();
                if !ring.free(host, number, false)? {
                    return Ok(());
                }
                host.begin_copy(number, ring.span(number, from.bytes), *from);
                ring.pieces[number] = Piece::Filling;
                ring.used += 1;
                *piece = Some(number);
            }
            self.begun += 1;
        }
        Ok(())
    }

    /// Drops what is not enqueued, and the events. Nothing may be in flight in the streams.
    pub(super) fn end<P: Platform>(mut self, host: P) {
        if let Some(ring) = &mut self.ring {
            ring.end(host);
        }
        for event in self.events {
            host.destroy_event(event);
        }
    }
}

/// Copies from one device, in order.
#[derive(Debug)]
pub(super) struct CopiesOut {
    ring: Option<Ring>,
}

impl CopiesOut {
    pub(super) fn new(host: &HostMemory) -> Self {
        let ring = Ring::of(host);
        Self { ring }
    }

    /// Enqueues a copy to a window. `is_registered`: the window is. The context of the tools is current.
    pub(super) fn copy<P: Platform>(
        &mut self,
        host: P,
        to: HostSpan,
        is_registered: bool,
        from: Address,
        tools: &Tools,
    ) -> Result<(), Code> {
        let Some(ring) = self.ring.as_mut().filter(|_| !is_registered) else {
            return host.copy_to_host(to, from, tools.stream);
        };
        ring.prepare(host, tools.context)?;
        for (offset, piece) in pieces(to, ring.bytes) {
            let number = ring.next();
            // What has arrived before is copied on meanwhile.
            for before in 1..PIECES {
                let _free = ring.free(host, (number + before) % PIECES, false)?;
            }
            let _free = ring.free(host, number, true)?;
            let source = from + offset;
            host.copy_to_host(ring.span(number, piece.bytes), source, tools.stream)?;
            let event = ring.take_event(tools.context)?;
            ring.pieces[number] = Piece::FromDevice(event, piece);
            ring.used += 1;
            host.record_event(event.event, tools.stream)?;
        }
        Ok(())
    }

    /// Returns the number of pieces that have been used so far.
    pub(super) fn used(&self) -> u64 {
        self.ring.as_ref().map_or(0, |ring| ring.used)
    }

    /// Blocks until the first `used` pieces are in their windows.
    pub(super) fn arrive<P: Platform>(&mut self, host: P, used: u64) -> Result<(), Code> {
        let Some(ring) = &mut self.ring else {
            return Ok(());
        };
        let still = ring.used.saturating_sub(PIECES as u64)..used.min(ring.used);
        for may_block in [false, true] {
            for number in still.clone() {
                let number = usize::try_from(number).unwrap_or(0) % PIECES;
                let _free = ring.free(host, number, may_block)?;
            }
        }
        Ok(())
    }

    /// Drops what has not arrived. Nothing may be in flight in the stream.
    pub(super) fn end<P: Platform>(mut self, host: P) {
        if let Some(ring) = &mut self.ring {
            ring.end(host);
        }
    }
}

/// Returns the parts of a range of at most this size, each with its offset in bytes.
fn pieces(span: HostSpan, most: u64) -> impl Iterator<Item = (u64, HostSpan)> {
    let count = span.bytes.div_ceil(most.max(1));
    (0..count).map(move |number| {
        let offset = number * most;
        let piece = HostSpan {
            at: span.at + offset,
            bytes: most.min(span.bytes - offset),
        };
        (offset, piece)
    })
}

use super::*;

impl System for &'static Fake {
    fn process(self) -> &'static Process {
        &self.process
    }

    fn orders(self) -> &'static Orders {
        &self.orders
    }

    fn facts(self) -> &'static Facts {
        &self.facts
    }

    fn has_agent_orders(self) -> bool {
        !self.default_orders.get()
    }

    fn memory(self) -> &'static Memory {
        self.memory.get_or_init(Memory::new)
    }

    fn process_id(self) -> u32 {
        self.pid.get()
    }

    fn random(self) -> Option<u64> {
        let next = self.next_handle.get() + 1;
        self.next_handle.set(next);
        Some(next << 32)
    }

    fn memory_file(self) -> Option<File> {
        let path = std::env::temp_dir().join(format!("preload-ops-{}", std::process::id()));
        let path = format!("{}-{:p}-{}", path.display(), self, self.next_handle.get());
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(&path).ok()?;
        std::fs::remove_file(&path).ok()?;
        Some(file)
    }

    fn permit_copies(self) {}

    fn open_process(self, _pid: u64) -> Option<OwnedFd> {
        self.memory_file().map(OwnedFd::from)
    }

    fn copy_descriptor(self, _process: BorrowedFd<'_>, number: u64) -> Result<OwnedFd, Code> {
        let offered = self.offered.borrow();
        let file = offered.get(&number).ok_or(INVALID_VALUE)?;
        file.try_clone()
            .map(OwnedFd::from)
            .map_err(|_| INVALID_VALUE)
    }

    fn now(self) -> u64 {
        self.now.get()
    }

    fn wait(self, _orders: &Orders, word: &AtomicU32, expected: u32, at_most: Duration) {
        if word.load(Ordering::Relaxed) == expected {
            self.blocked(at_most);
        }
    }

    fn wait_at(self, word: &AtomicU32, expected: u32, at_most: Duration) {
        if word.load(Ordering::Relaxed) == expected {
            self.blocked(at_most);
        }
    }

    fn map_host(self, bytes: u64) -> Option<u64> {
        let at = self.next_handle.get() + 1;
        self.next_handle.set(at + bytes);
        Some((1 << 44) + at.next_multiple_of(GRANULE))
    }

    fn unmap_host(self, span: HostSpan) {
        assert!(!self.registered.borrow().contains(&span));
        self.unmapped.borrow_mut().push(span);
    }

    fn begin_copy(self, piece: usize, to: HostSpan, from: HostSpan) {
        self.end_copies();
        assert!(to.bytes <= from.bytes);
        let before = self.copying.borrow_mut().insert(piece, (to, from));
        assert_eq!(before, None, "the piece is in use");
        self.staged.set(self.staged.get() + to.bytes);
    }

    fn is_copied(self, piece: usize) -> bool {
        // Every other time.
        let looks = self.looks.get() + 1;
        self.looks.set(looks);
        if looks.is_multiple_of(2) {
            self.end_copy(piece);
        }
        !self.copying.borrow().contains_key(&piece)
    }

    fn end_copy(self, piece: usize) {
        let Some((to, from)) = self.copying.borrow_mut().remove(&piece) else {
            return;
        };
        let mut contents = self.host_contents.borrow_mut();
        for offset in (0..to.bytes).step_by(usize::try_from(GRANULE).unwrap()) {
            let value = contents[&(from.at + offset)];
            contents.insert(to.at + offset, value);
        }
    }

    fn wake(self, _word: &AtomicU32) {
        self.woken.set(self.woken.get() + 1);
    }

    fn host_words(self, span: HostSpan, near: &Range<u64>) -> Vec<u64> {
        let all = self.host_contents.borrow();
        let inside = all.range(span.at..span.at + span.bytes);
        let aligned = inside.filter(|(at, _)| (*at - span.at).is_multiple_of(8));
        let words = aligned.map(|(_, word)| *word);
        words.filter(|word| near.contains(word)).collect()
    }

    fn pause(self, span: Duration) {
        self.blocked(span);
    }

    fn barrier(self) {
        self.barriers.set(self.barriers.get() + 1);
        match self.on_barrier.take() {
            Some((0, next)) => next(self),
            Some((others, next)) => {
                self.on_barrier.replace(Some((others - 1, next)));
            }
            None => {}
        }
    }

    fn thread(self) -> Option<&'static Thread> {
        if self.thread.get().is_none() {
            self.thread.set(self.process.threads.register(1, |_| false));
        }
        self.thread.get()
    }

    fn is_launching(self) -> bool {
        self.thread.get().is_some_and(Thread::is_launching)
    }

    fn thread_identity(self) -> usize {
        0x1234
    }

    fn is_inside(self) -> bool {
        self.is_inside.get()
    }

    fn set_inside(self, is_inside: bool) {
        self.is_inside.set(is_inside);
    }

    fn recent(self) -> Option<&'static Stream> {
        self.recent.get()
    }

    fn set_recent(self, stream: Option<&'static Stream>) {
        self.recent.set(stream);
    }

    fn send(self, message: &FromProcess) {
        self.sent.borrow_mut().push(message.clone());
    }

    fn abandon_hung_agent(self) {
        self.abandoned.set(self.abandoned.get() + 1);
        // As on a slot where processes go on without an agent.
        self.default_orders.set(true);
    }

    fn log(self, line: &str) {
        self.lines.borrow_mut().push(line.to_owned());
    }
}

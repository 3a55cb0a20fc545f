use super::*;

impl Driver for &'static Fake {
    fn current_context(self) -> Result<Handle, Code> {
        Ok(self.context.get())
    }

    fn set_current_context(self, context: Handle) -> Result<(), Code> {
        if self.destroyed.borrow().contains(&context) {
            return Err(INVALID_VALUE);
        }
        self.context.set(context);
        Ok(())
    }

    fn primary_context(self, _device: c_int) -> Result<Handle, Code> {
        Ok(CONTEXT)
    }

    fn is_primary_active(self, _device: c_int) -> Result<bool, Code> {
        Ok(self.primary.get())
    }

    fn device(self, ordinal: c_int) -> Result<c_int, Code> {
        Ok(ordinal)
    }

    fn device_uuid(self, _device: c_int) -> Result<[u8; 16], Code> {
        Ok([7; 16])
    }

    fn device_attribute(self, attribute: c_int, _device: c_int) -> Result<c_int, Code> {
        Ok(c_int::from(!self.lacks.borrow().contains(&attribute)))
    }

    fn argument_words(self, _function: Handle, arguments: Arguments) -> Option<Vec<u64>> {
        self.arguments.borrow().get(&arguments.list).cloned()
    }

    fn graph_nodes(self, graph: Handle, at_most: usize) -> Result<Vec<Handle>, Code> {
        self.graph_reads.set(self.graph_reads.get() + 1);
        let graphs = self.graphs.borrow();
        let nodes = graphs.get(&graph).filter(|nodes| nodes.len() <= at_most);
        nodes.cloned().ok_or(INVALID_VALUE)
    }

    fn node_use(self, node: Handle) -> NodeUse {
        let nodes = self.nodes.borrow();
        nodes.get(&node).cloned().unwrap_or(NodeUse::Unknown)
    }

    fn current_device(self) -> Result<c_int, Code> {
        Ok(Fake::device_of(self.context.get()))
    }

    fn synchronize(self) -> Result<(), Code> {
        let context = self.context.get();
        self.synchronized.borrow_mut().push(context);
        match self.synchronize_error.borrow_mut().pop_front() {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    fn synchronize_within(
        self,
        contexts: &[Handle],
        _at_most: Duration,
    ) -> Option<Result<(), Code>> {
        if self.is_working.get() {
            return None;
        }
        let live = contexts
            .iter()
            .filter(|own| !self.destroyed.borrow().contains(*own));
        let mut results = live.map(|own| {
            self.synchronized.borrow_mut().push(*own);
            match self.synchronize_error.borrow_mut().pop_front() {
                Some(code) => Err(code),
                None => Ok(()),
            }
        });
        Some(results.find(Result::is_err).unwrap_or(Ok(())))
    }

    fn total_memory(self, _device: c_int) -> Result<u64, Code> {
        Ok(self.total.get())
    }

    fn memory_info(self) -> Result<(u64, u64), Code> {
        let total = self.total.get();
        Ok((total - self.physical_bytes(), total))
    }

    fn allocate(self, bytes: u64) -> Result<Address, Code> {
        if let Some(code) = self.allocate_error.get() {
            return Err(code);
        }
        if bytes > self.total.get() {
            return Err(OUT_OF_MEMORY);
        }
        let at = self.next_native.get().max(1 << 20);
        self.next_native.set(at + bytes);
        self.allocated.borrow_mut().push(at);
        Ok(at)
    }

    fn free(self, address: Address) {
        self.freed.borrow_mut().push(address);
    }

    fn create_stream(self) -> Result<Handle, Code> {
        Ok(0x7000)
    }

    fn synchronize_stream(self, stream: Handle) -> Result<(), Code> {
        if !self.delayed.borrow().is_empty() {
            self.now.set(self.now.get().max(self.end_of(stream)));
        }
        self.end_copies();
        Ok(())
    }

    fn copy_to_host(self, to: HostSpan, from: Address, stream: Handle) -> Result<(), Code> {
        if let Some(code) = self.copy_error.borrow_mut().pop_front()
            && code != SUCCESS
        {
            return Err(code);
        }
        self.copy(stream, Delayed::ToHost(to, from));
        Ok(())
    }

    fn copy_to_device(self, to: Address, from: HostSpan, stream: Handle) -> Result<(), Code> {
        if let Some(code) = self.copy_error.borrow_mut().pop_front()
            && code != SUCCESS
        {
            return Err(code);
        }
        let before = self.poisoned_at_first_copy.get();
        let poisoned = before.unwrap_or_else(|| self.poisoned.get());
        self.poisoned_at_first_copy.set(Some(poisoned));
        self.copy(stream, Delayed::ToDevice(to, from));
        Ok(())
    }

    fn set_all_bits(self, at: Address, bytes: u64, _stream: Handle) -> Result<(), Code> {
        for offset in (0..bytes).step_by(usize::try_from(GRANULE).unwrap()) {
            self.set_granule(at + offset, u64::MAX);
        }
        self.poisoned.set(self.poisoned.get() + bytes);
        Ok(())
    }

    fn write_words(self, to: Address, words: &[u64], _stream: Handle) -> Result<(), Code> {
        let places = (to..).step_by(8).zip(words.iter().copied());
        self.words.borrow_mut().extend(places);
        Ok(())
    }

    fn read_words(self, from: Address, words: &mut [u64], _stream: Handle) -> Result<(), Code> {
        let all = self.words.borrow();
        for (at, word) in (from..).step_by(8).zip(words) {
            *word = all[&at];
        }
        Ok(())
    }

    fn register_host(self, window: HostSpan) -> Result<(), Code> {
        self.registered.borrow_mut().push(window);
        Ok(())
    }

    fn release_host(self, window: HostSpan) -> Result<(), Code> {
        self.registered.borrow_mut().retain(|own| *own != window);
        Ok(())
    }

    fn load_hash(self) -> Result<Handle, Code> {
        Ok(0xf777)
    }

    fn launch_hash(
        self,
        _kernel: Handle,
        [out, table, count, words]: [u64; 4],
        _stream: Handle,
    ) -> Result<(), Code> {
        assert_eq!(words, GRANULE / 8);
        for number in 0..count {
            let at = self.words.borrow()[&(table + 8 * number)];
            let value = self.granule_at(at).ok_or(INVALID_VALUE)?;
            let mut all = self.words.borrow_mut();
            for half in 0..2 {
                *all.entry(out + 16 * number + 8 * half).or_default() += value + half;
            }
        }
        Ok(())
    }

    fn reserve_addresses(self, bytes: u64, alignment: u64) -> Result<Address, Code> {
        let mut reserved = self.reserved.borrow_mut();
        let begin = reserved.last().map_or(1 << 40, |(at, bytes)| at + bytes);
        let begin = begin.next_multiple_of(alignment);
        reserved.push((begin, bytes));
        Ok(begin)
    }

    fn granularity(self, _properties: &Properties) -> Result<u64, Code> {
        Ok(GRANULE)
    }

    fn create_memory(self, properties: &Properties, bytes: u64) -> Result<u64, Code> {
        assert!(bytes.is_multiple_of(GRANULE));
        self.pass(self.handle_ns.get());
        if let Some(code) = self.create_error.borrow_mut().pop_front() {
            return Err(code);
        }
        if self.lacks.borrow().contains(&SHARING) && properties.handle_types != 0 {
            return Err(NOT_SUPPORTED);
        }
        if self.physical_bytes() + bytes > self.total.get() {
            return Err(OUT_OF_MEMORY);
        }
        let handle = self.next_handle.get() + 1;
        self.next_handle.set(handle);
        self.physical.borrow_mut().insert(handle, bytes);
        let granules = usize::try_from(bytes / GRANULE).unwrap();
        self.contents.borrow_mut().insert(handle, vec![0; granules]);
        Ok(handle)
    }

    fn memory_properties(self, _handle: u64) -> Result<Properties, Code> {
        Ok(Properties::plain(0, false))
    }

    fn release_memory(self, handle: u64) {
        self.pass(self.handle_ns.get());
        let is_mapped = self.mappings.borrow().values().any(|(_, of)| *of == handle);
        let is_first = !self.released.borrow().contains(&handle);
        assert!(
            is_first && self.physical.borrow().contains_key(&handle),
            "a handle is released once"
        );
        if is_mapped {
            // Its mappings keep the memory.
            self.released.borrow_mut().insert(handle);
        } else {
            self.physical.borrow_mut().remove(&handle);
        }
    }

    fn map(self, at: Address, bytes: u64, handle: u64) -> Result<(), Code> {
        if let Some(code) = self.map_error.borrow_mut().pop_front() {
            return Err(code);
        }
        let is_reserved =
            |(begin, length): &(u64, u64)| *begin <= at && at + bytes <= begin + length;
        assert!(self.reserved.borrow().iter().any(is_reserved));
        let mut mappings = self.mappings.borrow_mut();
        let before = mappings.range(..at + bytes).next_back();
        assert!(before.is_none_or(|(begin, (length, _))| begin + length <= at));
        mappings.insert(at, (bytes, handle));
        Ok(())
    }

    fn unmap(self, at: Address, bytes: u64) -> Result<(), Code> {
        match self.unmap_error.borrow_mut().pop_front() {
            None | Some(SUCCESS) => {}
            Some(code) => return Err(code),
        }
        let gone = self.mappings.borrow_mut().remove(&at);
        assert_eq!(
            gone.map(|(length, _)| length),
            Some(bytes),
            "one whole mapping"
        );
        let handle = gone.map_or(0, |(_, handle)| handle);
        let is_mapped = self.mappings.borrow().values().any(|(_, of)| *of == handle);
        if !is_mapped && self.released.borrow_mut().remove(&handle) {
            self.physical.borrow_mut().remove(&handle);
        }
        Ok(())
    }

    fn set_access(self, at: Address, bytes: u64, access: &[Access]) -> Result<(), Code> {
        {
            // A driver takes whole mappings alone.
            let mappings = self.mappings.borrow();
            let mut own = mappings.range(at..at + bytes);
            let last = mappings.range(..at + bytes).next_back();
            let is_whole = own.next().is_some_and(|(first, _)| *first == at)
                && last.is_some_and(|(first, (length, _))| first + length == at + bytes);
            if !is_whole {
                return Err(INVALID_VALUE);
            }
        }
        self.access.borrow_mut().insert(at, access.to_vec());
        Ok(())
    }

    fn export_memory(self, handle: u64) -> Result<OwnedFd, Code> {
        let bytes = self.physical.borrow().get(&handle).copied();
        bytes.ok_or(INVALID_VALUE)?;
        self.memory_file().map(OwnedFd::from).ok_or(INVALID_VALUE)
    }

    fn import_memory(self, _file: BorrowedFd<'_>) -> Result<u64, Code> {
        let handle = self.next_handle.get() + 1;
        self.next_handle.set(handle);
        self.physical.borrow_mut().insert(handle, GRANULE);
        Ok(handle)
    }

    fn default_pool(self, device: c_int) -> Result<Handle, Code> {
        Ok(POOL + usize::try_from(device).unwrap_or(0))
    }

    fn pool_attribute(self, pool: Handle, attribute: c_int) -> Result<u64, Code> {
        let pools = self.pools.borrow();
        let (reserved, used) = pools.get(&pool).copied().ok_or(INVALID_VALUE)?;
        Ok(if attribute == RESERVED {
            reserved
        } else {
            used
        })
    }

    fn trim_pool(self, pool: Handle, keep: u64) {
        if let Some((reserved, used)) = self.pools.borrow_mut().get_mut(&pool) {
            *reserved = (*used).max(keep).min(*reserved);
        }
    }

    fn free_async(self, address: Address, _stream: Handle) {
        self.freed_async.borrow_mut().push(address);
    }

    fn graph_memory(self, _device: c_int, _attribute: c_int) -> Result<u64, Code> {
        Ok(self.graph_bytes.get())
    }

    fn stream_context(self, _stream: Handle) -> Result<Handle, Code> {
        Ok(CONTEXT)
    }

    fn query_stream(self, stream: Handle) -> Result<(), Code> {
        self.touch();
        let is_over = self.end_of(stream) <= self.now.get();
        if is_over { Ok(()) } else { Err(NOT_READY) }
    }

    fn is_capturing(self, stream: Handle) -> Result<bool, Code> {
        Ok(self.capturing.borrow().contains(&stream))
    }

    fn exchange_capture_mode(self, mode: c_int) -> Result<c_int, Code> {
        Ok(self.capture_mode.replace(mode))
    }

    fn create_event(self, _flags: u32) -> Result<Handle, Code> {
        self.touch();
        let mut events = self.events.borrow_mut();
        let event = 0xe000 + self.next_event.get();
        self.next_event.set(self.next_event.get() + 1);
        events.insert(event, u64::MAX);
        Ok(event)
    }

    fn record_event(self, event: Handle, stream: Handle) -> Result<(), Code> {
        assert!(
            !self.capturing.borrow().contains(&stream),
            "no event of this library enters a capture"
        );
        if let Some(code) = self.record_error.get() {
            return Err(code);
        }
        let at = self.end_of(stream).max(self.now.get());
        self.events.borrow_mut().insert(event, at);
        Ok(())
    }

    fn query_event(self, event: Handle) -> Result<(), Code> {
        self.touch();
        if let Some(code) = self.query_error.get() {
            return Err(code);
        }
        self.end_copies();
        let at = self.events.borrow().get(&event).copied();
        match at {
            Some(at) if at <= self.now.get() => Ok(()),
            Some(_) => Err(NOT_READY),
            None => Err(INVALID_VALUE),
        }
    }

    fn synchronize_event(self, event: Handle) -> Result<(), Code> {
        match self.on_event_wait.take() {
            Some((0, next)) => next(self),
            Some((others, next)) => {
                self.on_event_wait.replace(Some((others - 1, next)));
            }
            None => {}
        }
        if let Some(code) = self.event_wait_error.take() {
            return Err(code);
        }
        let at = self.events.borrow().get(&event).copied();
        let at = at.ok_or(INVALID_VALUE)?;
        self.now.set(self.now.get().max(at));
        self.end_copies();
        Ok(())
    }

    fn elapsed_ms(self, from: Handle, to: Handle) -> Result<f32, Code> {
        let events = self.events.borrow();
        let at = |event| events.get(event).copied().ok_or(INVALID_VALUE);
        let ns = at(&to)?.saturating_sub(at(&from)?);
        let us = u16::try_from(ns / 1_000).map_err(|_| INVALID_VALUE)?;
        Ok(f32::from(us) / 1e3)
    }

    fn destroy_event(self, event: Handle) {
        self.events.borrow_mut().remove(&event);
    }

    fn function_name(self, function: Handle) -> Option<Cow<'static, str>> {
        let names = self.names.borrow();
        names.get(&function).copied().map(Cow::Borrowed)
    }
}

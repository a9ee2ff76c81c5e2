//! The thread of a process that makes those calls of a driver that may wait for a running kernel. It opens and closes imports, pins and unpins
//! memory of the host, releases handles and creates streams. It starts and ends with its kind of memory. A forked child has no such thread.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use super::ForkGuard;
use crate::ipc::error::CallFailure;
use crate::ipc::mapping_queue::{MappingAnswer, MappingQueue, MappingRequest};

/// The thread, and its request queue.
#[derive(Debug)]
pub(super) struct MappingThread {
    queue: Arc<MappingQueue>,
    here: Arc<ForkGuard>,
    thread: Option<JoinHandle<()>>,
}

impl MappingThread {
    /// Starts a thread that executes the requests of a queue by `carry_out`.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn start_thread(
        queue: Arc<MappingQueue>,
        here: &Arc<ForkGuard>,
        carry_out: impl FnMut(MappingRequest) -> MappingAnswer + Send + 'static,
    ) -> Result<Self, CallFailure> {
        let served = Arc::clone(&queue);
        let thread = Builder::new().name("trunkline-map".to_owned());
        let thread = thread.spawn(move || served.serve_requests(carry_out));
        let thread = thread.map_err(|error| CallFailure::from_system("pthread_create", &error))?;
        Ok(Self { queue, here: Arc::clone(here), thread: Some(thread) })
    }

    /// Returns the request queue.
    pub(super) fn mapping_queue(&self) -> &MappingQueue {
        &self.queue
    }
}

impl Drop for MappingThread {
    /// Waits for the current request and for those that release objects; dropping a kind of memory may therefore wait for a kernel. Other requests
    /// are not executed: the kind closes its mappings when it is dropped.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.here.is_child() {
            return std::mem::forget(thread);
        }
        self.queue.end_service();
        // A thread that panicked has ended as well.
        let _ = thread.join();
        self.queue.drop_answers();
    }
}

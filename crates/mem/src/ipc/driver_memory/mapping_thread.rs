//! The thread of a process that makes a driver's calls which may wait for a kernel that runs. It opens memory of peers and closes it, pins memory of the host and unpins
//! it, gives handles back and makes streams. It begins with its kind of memory and ends with it. A child of a fork has none.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use super::ForkGuard;
use crate::ipc::error::CallFailure;
use crate::ipc::mapping_queue::{MappingAnswer, MappingQueue, MappingRequest};

/// The thread, and its requests.
#[derive(Debug)]
pub(super) struct MappingThread {
    queue: Arc<MappingQueue>,
    here: Arc<ForkGuard>,
    thread: Option<JoinHandle<()>>,
}

impl MappingThread {
    /// Starts a thread that carries the requests of a queue out that way.
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

    /// Its requests.
    pub(super) fn mapping_queue(&self) -> &MappingQueue {
        &self.queue
    }
}

impl Drop for MappingThread {
    /// Waits for the request under way and for those that give something back; the end of a kind of memory may wait for a kernel. Others are not carried out: the kind
    /// closes its mappings when it ends.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.here.is_child() {
            return std::mem::forget(thread);
        }
        self.queue.end_service();
        // One that panicked has ended, too.
        let _ = thread.join();
        self.queue.drop_answers();
    }
}

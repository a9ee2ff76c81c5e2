//! A thread that owns a state and runs submitted closures: the service thread and the progress thread.
//!
//! Used by ranks. Closures run in the order of submission, so that every call of the plugin happens on the thread on
//! which NCCL would make it.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use thiserror::Error;

type WorkerTask<S> = Box<dyn FnOnce(&mut S) + Send>;

/// The thread ended before it sent a result.
#[derive(Debug, Error)]
#[error("the {0} thread ended unexpectedly")]
pub(crate) struct WorkerGone(&'static str);

/// The owner's handle of the thread.
#[derive(Debug)]
pub(crate) struct WorkerThread<S> {
    name: &'static str,
    tasks: Sender<WorkerTask<S>>,
    thread: JoinHandle<()>,
}

/// A pending result.
#[derive(Debug)]
pub(crate) struct WorkerAnswer<T> {
    name: &'static str,
    receiver: Receiver<T>,
}

impl<S: Send + 'static> WorkerThread<S> {
    /// Starts the thread.
    pub(crate) fn start_thread(name: &'static str, mut state: S) -> std::io::Result<Self> {
        let (tasks, inbox) = mpsc::channel::<WorkerTask<S>>();
        let run = move || {
            for task in inbox {
                task(&mut state);
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { name, tasks, thread })
    }

    /// Submits a closure without waiting for its result.
    pub(crate) fn begin_task<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> WorkerAnswer<T> {
        let (sender, receiver) = mpsc::channel();
        let task: WorkerTask<S> = Box::new(move |state| {
            let _ = sender.send(work(state));
        });
        // If the thread has ended, the closure and its result sender are dropped, which the receiver of the result
        // detects.
        let _ = self.tasks.send(task);
        WorkerAnswer { name: self.name, receiver }
    }

    /// Submits a closure and waits for its result.
    pub(crate) fn call_task<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Result<T, WorkerGone> {
        self.begin_task(work).wait()
    }

    /// Ends the thread, and drops its state.
    pub(crate) fn join_thread(self) -> Result<(), WorkerGone> {
        drop(self.tasks);
        self.thread.join().map_err(|_| WorkerGone(self.name))
    }
}

impl<T> WorkerAnswer<T> {
    /// Waits for the result.
    pub(crate) fn wait(self) -> Result<T, WorkerGone> {
        self.receiver.recv().map_err(|_| WorkerGone(self.name))
    }
}

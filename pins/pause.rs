//! Holds a pod's namespaces in the real environment. No image can be pulled there, so this is our own; rustc alone
//! compiles it into a static program. The container runtime ends it with SIGKILL, so it needs no signal handling.

fn main() {
    loop {
        std::thread::park();
    }
}

# Starts a thread that the interpreter does not know, from the library in its argument, prints "waits", and waits for a line.
# Then its own thread touches memory in a function of the library. Prints "ready", and ends with stdin.

require "fiddle"

PAGES = 16

LIBRARY = Fiddle.dlopen(ARGV[0])
START = Fiddle::Function.new(LIBRARY["start_stranger"], [], Fiddle::TYPE_VOID)
TOUCH = Fiddle::Function.new(LIBRARY["touch"], [Fiddle::TYPE_INT], Fiddle::TYPE_VOID)

def calls_library
  TOUCH.call(PAGES)
end

$stdout.sync = true
START.call
puts "waits"
$stdin.gets
calls_library
puts "ready"
$stdin.gets
